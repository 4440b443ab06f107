"""Multi-head attention as the lesson defines it: the specification of what `mha` must compute, bit for bit.

Every reference case comes from these two definitions. Change a statement here and the specification changes
with it.
"""

import math

import torch
import torch.nn as nn


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None):
    """Returns `(output, attention_weights)` of `softmax(query key^T / sqrt(d_k)) value`.

    `mask` broadcasts against the scores; where it equals 0 the score is replaced. `dropout` is a module or
    None. The weights returned are the ones used, after dropout.
    """
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        # A finite fill: a row that is masked everywhere becomes uniform, where -inf would make it NaN.
        scores = scores.masked_fill(mask == 0, -1e9)

    attention_weights = torch.nn.functional.softmax(scores, dim=-1)

    if dropout is not None:
        attention_weights = dropout(attention_weights)

    output = torch.matmul(attention_weights, value)
    return output, attention_weights


class MultiHeadAttention(nn.Module):
    """`num_heads` attentions side by side, each on its own `d_model / num_heads` features."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1):
        super().__init__()
        assert d_model % num_heads == 0, "d_model must be divisible by num_heads"

        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads

        # One wide layer does the projections of all heads at once.
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)

        self.W_o = nn.Linear(d_model, d_model)

        self.dropout = nn.Dropout(dropout)
        self.attention_weights = None

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor = None):
        """Attends from `query` (batch, query_len, d_model) to `key` and `value` (batch, key_len, d_model)."""
        batch_size = query.shape[0]

        # 1. Project.
        Q = self.W_q(query)  # (batch, query_len, d_model)
        K = self.W_k(key)  # (batch, key_len, d_model)
        V = self.W_v(value)  # (batch, key_len, d_model)

        # 2. Split into heads: (batch, length, d_model) -> (batch, num_heads, length, d_k)
        Q = Q.view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        K = K.view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        V = V.view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)

        # 3. Attend, every head on its own.
        output, self.attention_weights = scaled_dot_product_attention(Q, K, V, mask, self.dropout)

        # 4. Join the heads again: (batch, num_heads, query_len, d_k) -> (batch, query_len, d_model)
        output = output.transpose(1, 2).contiguous().view(batch_size, -1, self.d_model)

        # 5. Mix them.
        output = self.W_o(output)  # (batch, query_len, d_model)

        return output
