// Greedy decoding with self-attention and cross-attention: a small decoder learns to say a sequence of digits backwards,
// then says it with the fused engine, one position at a time.
//
//     greedy_decoding [steps of training, 400 by default]
//
// Exit status: 0 all sequences are right and equal to what the module says without a cache; 1 not; 2 bad usage.
#include <mha/mha.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iomanip>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using torch::Tensor;

constexpr int64_t d_model = 32;
constexpr int64_t num_heads = 4;
constexpr int64_t max_digits = 12;
constexpr int64_t begin_token = 10;  // what the decoder is given first
constexpr int64_t end_token = 11;    // what it says last
constexpr int64_t vocabulary = 12;

/// A decoder's block, trained with the lesson's modules.
struct DecoderImpl : torch::nn::Module {
  torch::nn::Embedding tokens{nullptr};
  torch::nn::Embedding source_positions{nullptr};  // counted from the end
  torch::nn::Embedding target_positions{nullptr};
  mha::MultiHeadAttention self_attention{nullptr};
  mha::MultiHeadAttention cross_attention{nullptr};
  torch::nn::Linear logits{nullptr};

  DecoderImpl() {
    const mha::MultiHeadAttentionOptions options(d_model, num_heads);
    tokens = register_module("tokens", torch::nn::Embedding(vocabulary, d_model));
    source_positions = register_module("source_positions", torch::nn::Embedding(max_digits + 1, d_model));
    target_positions = register_module("target_positions", torch::nn::Embedding(max_digits + 1, d_model));
    self_attention = register_module("self_attention", mha::MultiHeadAttention(options));
    cross_attention = register_module("cross_attention", mha::MultiHeadAttention(options));
    logits = register_module("logits", torch::nn::Linear(d_model, vocabulary));
  }

  /// What the decoder attends to: source (B, S) -> (B, S, D). `lengths` (B).
  Tensor encode(const Tensor& source, const Tensor& lengths) {
    const auto from_end = lengths.unsqueeze(1) - 1 - torch::arange(source.size(1));
    return tokens(source) + source_positions(from_end.clamp_min(0));
  }

  /// Tokens at positions from `first` on: (B, L) -> (B, L, D).
  Tensor embed(const Tensor& target, int64_t first) {
    return tokens(target) + target_positions(torch::arange(first, first + target.size(1)));
  }

  /// All positions at once, as in training: (B, L, vocabulary).
  Tensor forward(const Tensor& source, const Tensor& lengths, const Tensor& target) {
    const auto memory = encode(source, lengths);
    auto x = embed(target, 0);
    x = x + self_attention(x, x, x, mha::causal_mask(target.size(1)));
    x = x + cross_attention(x, memory, memory, mha::padding_mask(lengths, source.size(1)));
    return logits(x);
  }
};
TORCH_MODULE(Decoder);

/// Sequences of digits with the end before their first one, padded on the right; and the same backwards.
struct Batch {
  Tensor source;   // (B, max_digits + 1)
  Tensor lengths;  // (B), the end counts
  Tensor target;   // (B, max_digits + 1): digits backwards, the end, then -1
};

Batch random_batch(int64_t size) {
  Batch batch{torch::zeros({size, max_digits + 1}, torch::kLong),
              torch::randint(2, max_digits + 2, {size}, torch::kLong),
              torch::full({size, max_digits + 1}, -1, torch::kLong)};
  for (int64_t item = 0; item < size; ++item) {
    const auto length = batch.lengths[item].item<int64_t>();
    const auto digits = torch::randint(0, 10, {length - 1}, torch::kLong);
    batch.source[item][0] = end_token;
    batch.source[item].narrow(0, 1, length - 1).copy_(digits);
    batch.target[item].narrow(0, 0, length - 1).copy_(digits.flip(0));
    batch.target[item][length - 1] = end_token;
  }
  return batch;
}

/// What the decoder is given: the beginning, then what it is to say, one later.
Tensor shifted(const Tensor& target) {
  const auto begin = torch::full({target.size(0), 1}, begin_token, torch::kLong);
  return torch::cat({begin, target.narrow(1, 0, target.size(1) - 1).clamp_min(0)}, 1);
}

void train(Decoder& decoder, int64_t steps) {
  torch::optim::Adam optimizer(decoder->parameters(), torch::optim::AdamOptions(5e-3));
  decoder->train();
  for (int64_t step = 1; step <= steps; ++step) {
    const auto batch = random_batch(64);
    const auto logits = decoder(batch.source, batch.lengths, shifted(batch.target));
    const auto loss = torch::cross_entropy_loss(logits.flatten(0, 1), batch.target.flatten(), {},
                                                at::Reduction::Mean, /*ignore_index=*/-1);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 100 == 0) {
      std::cout << "step " << std::setw(4) << step << "  loss " << std::fixed << std::setprecision(4)
                << loss.item<double>() << "\n";
    }
  }
  decoder->eval();
}

/// One position at a time: (B, max_digits + 1) tokens.
Tensor decode(Decoder& decoder, const Batch& batch) {
  const mha::FusedMultiHeadAttention self_attention(decoder->self_attention);
  const mha::FusedMultiHeadAttention cross_attention(decoder->cross_attention);
  const auto size = batch.source.size(0);

  // The memory is projected once; padding stays unseen.
  const auto memory = cross_attention.project_memory(decoder->encode(batch.source, batch.lengths),
                                                     mha::padding_mask(batch.lengths, batch.source.size(1)));
  mha::KeyValueCache cache(self_attention, size, /*capacity=*/max_digits + 1);

  auto token = torch::full({size, 1}, begin_token, torch::kLong);
  std::vector<Tensor> said;
  for (int64_t position = 0; position <= max_digits; ++position) {
    auto x = decoder->embed(token, position);  // (B, 1, D)
    x = x + cache.step(x);
    x = x + memory.attend(x);
    token = decoder->logits(x).argmax(-1);  // the greedy choice
    said.push_back(token);
  }
  return torch::cat(said, 1);
}

/// The same by the module, which computes the whole sequence again for each token.
Tensor decode_without_cache(Decoder& decoder, const Batch& batch) {
  auto said = torch::full({batch.source.size(0), 1}, begin_token, torch::kLong);
  for (int64_t position = 0; position <= max_digits; ++position) {
    const auto next =
        decoder(batch.source, batch.lengths, said).select(1, position).argmax(-1, /*keepdim=*/true);
    said = torch::cat({said, next}, 1);
  }
  return said.narrow(1, 1, max_digits + 1);
}

/// Up to the end.
std::string text(const Tensor& tokens) {
  std::string result;
  for (int64_t i = 0; i < tokens.size(0); ++i) {
    const auto token = tokens[i].item<int64_t>();
    if (token == end_token) {
      break;
    }
    result += (result.empty() ? "" : " ") + std::to_string(token);
  }
  return result;
}

int run(int64_t steps) {
  torch::manual_seed(1);
  Decoder decoder;
  train(decoder, steps);

  const torch::NoGradGuard no_gradients;
  const auto batch = random_batch(8);
  const auto said = decode(decoder, batch);
  int64_t right = 0;
  for (int64_t item = 0; item < batch.source.size(0); ++item) {
    const auto length = batch.lengths[item].item<int64_t>();
    const auto answer = text(said[item]);
    const bool is_right = answer == text(batch.target[item].narrow(0, 0, length));
    right += is_right ? 1 : 0;
    std::cout << std::setw(2 * max_digits) << text(batch.source[item].narrow(0, 1, length - 1)) << "  ->  "
              << answer << (is_right ? "" : "   (wrong)") << "\n";
  }
  // After the end, what is said means nothing.
  const auto counts = batch.target != -1;
  const auto whole = decode_without_cache(decoder, batch);
  const bool is_equal = torch::equal(said.masked_select(counts), whole.masked_select(counts));
  std::cout << right << " of " << batch.source.size(0) << " right, "
            << (is_equal ? "the same as" : "OTHER THAN") << " what the module says without a cache\n";
  return right == batch.source.size(0) && is_equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    char* end = nullptr;
    const int64_t steps = argc > 1 ? std::strtol(argv[1], &end, 10) : 400;
    if (argc > 2 || steps < 0 || (end != nullptr && (*end != '\0' || end == argv[1]))) {
      std::cerr << "greedy_decoding: expected at most one number, the steps of training, such as 400\n";
      return 2;
    }
    return run(steps);
  } catch (const std::exception& error) {
    std::cerr << "greedy_decoding: " << error.what() << "\n";
    return 2;
  }
}
