// What Python sees of the library, after torch.ops.load_library("build/release/libmha_ops.so").
//
// Functions of tensors, torch.ops.mha:
//
//     scaled_dot_product_attention(query, key, value, mask=None, causal=False)        (B, H, L, d_k)
//     multi_head_attention(query, key, value, weights, num_heads, mask=None, causal=False)
//                                                    (B, L, D); weights: the lesson's eight, in its order
//
// Fixed weights, packed once, torch.classes.mha:
//
//     fused = FusedMultiHeadAttention(module.state_dict(), num_heads, dtype=None)     the lesson's eight names
//     fused = FusedMultiHeadAttention.load(path, num_heads=None, prefix="", layout="", dtype=None)
//     fused.forward(x, mask=None, causal=False)                          self-attention
//     fused.cross(query, memory, mask=None, causal=False)                cross-attention
//     fused.attend(query, key, value, mask=None, causal=False)           the lesson's forward
//     fused.attention_weights(query, key, mask=None, causal=False)       (B, H, L, S)
//     fused.describe(query, key, value, mask=None, causal=False)         the path that `attend` takes, as text
//     fused.d_model(), num_heads(), state_dict()
//
//     memory = fused.project_memory(memory, mask=None)                   a ProjectedMemory: keys(), values(), mask()
//     memory.attend(query), attend_into(query, output)                   cross-attention, by the weights of `fused`
//
//     cache = KeyValueCache(fused, batch, capacity)
//     cache.prefill(x, lengths=None), step(x), step_into(x, output)
//     cache.reset(item=None), truncate(item, length), copy(source, target), reorder(sources)
//     cache.assign(item, keys, values)                                   such as keys(item), values(item) of another
//     cache.lengths(), batch(), capacity(), keys(item), values(item)
//
//     lesson = MultiHeadAttention(module.state_dict(), num_heads)        or MultiHeadAttention.load(path, ...)
//     lesson.forward(query, key, value, mask=None)
//     lesson.attention_weights()                                         (B, H, L, S) of the last forward, or None
//
// `load` reads any file that `mha::read_weights` reads; without num_heads it takes that of the config.json beside it.
// `causal` is CausalAlignment::top_left: query i sees keys 0 to i. What the library refuses is a ValueError of one
// line, what is wrong with a file a RuntimeError of one line; arguments of other types are refused by LibTorch in its
// own words. All but the lesson is for inference. Python's lock is not held during calls.
//
// All objects can be copied (copy.deepcopy), pickled and saved (torch.save).
//
// Methods that return tensors computed from tensors are operators too (torch.ops.mha.attend(fused, query, key, value),
// ...), with kernels for shapes: torch.compile and torch.export trace either. Calls that change a tensor, or a cache by
// more than new positions (attend_into, step_into, reset, ...), are refused inside of what is traced.
#include "ops/classes.h"

TORCH_LIBRARY(mha, library) {
  mha::ops::register_lesson(library);
  mha::ops::register_fused(library);
  mha::ops::register_cache(library);
  mha::ops::register_functional(library);
}
