/// Blocks in foreign layouts, packed from the lesson's weights independently of the library's table.
#pragma once

#include <ATen/Functions.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "mha/weights.h"
#include "testing.h"

namespace mha::testing {

constexpr int64_t kWidth = 12;
constexpr int64_t kHeads = 3;

/// Eight random tensors by the lesson's names.
inline StateDict lesson_weights(at::ScalarType dtype = at::kFloat) {
  StateDict result;
  for (const char* layer : {"W_q", "W_k", "W_v", "W_o"}) {
    result.insert(layer + std::string(".weight"), at::randn({kWidth, kWidth}).to(dtype));
    result.insert(layer + std::string(".bias"), at::randn({kWidth}).to(dtype));
  }
  return result;
}

/// The same as a module of that layout can have them: T5 has no biases.
inline StateDict lesson_weights_for(const std::string& layout, at::ScalarType dtype = at::kFloat) {
  StateDict result = lesson_weights(dtype);
  for (auto& item : result) {
    if (layout == "t5" && item.key().ends_with("bias")) {
      item.value().zero_();
    }
  }
  return result;
}

/// Every name with `prefix` and a dot before it.
inline StateDict under(const std::string& prefix, const StateDict& tensors) {
  StateDict result;
  for (const auto& item : tensors) {
    result.insert(prefix + "." + item.key(), item.value());
  }
  return result;
}

/// As models keep one layer for all heads: the rows of query, key and value of the first head, then of the next.
inline at::Tensor head_by_head(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const auto heads = [](const at::Tensor& tensor) { return tensor.chunk(kHeads); };
  std::vector<at::Tensor> rows;
  for (int64_t head = 0; head < kHeads; ++head) {
    for (const at::Tensor& tensor : {query, key, value}) {
      rows.push_back(heads(tensor)[static_cast<std::size_t>(head)]);
    }
  }
  return at::cat(rows);
}

/// `lesson` as a module of that layout would save it.
inline StateDict packed(const std::string& layout, const StateDict& lesson) {
  StateDict result;
  const auto separate = [&](const std::string& q, const std::string& k, const std::string& v,
                            const std::string& o) {
    const std::pair<std::string, std::string> layers[] = {{"W_q.", q}, {"W_k.", k}, {"W_v.", v}, {"W_o.", o}};
    for (const auto& [ours, theirs] : layers) {
      result.insert(theirs + "weight", lesson[ours + "weight"]);
      result.insert(theirs + "bias", lesson[ours + "bias"]);
    }
  };
  const auto together = [&](const std::string& qkv, const std::string& output, const auto& join) {
    for (const std::string kind : {"weight", "bias"}) {
      result.insert(qkv + kind, join(lesson["W_q." + kind], lesson["W_k." + kind], lesson["W_v." + kind]));
      result.insert(output + kind, lesson["W_o." + kind]);
    }
  };
  const auto stack = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return at::cat({q, k, v});
  };
  if (layout == "lesson") {
    separate("W_q.", "W_k.", "W_v.", "W_o.");
  } else if (layout == "pytorch") {
    together("in_proj_", "out_proj.", stack);
  } else if (layout == "pytorch-separate") {
    separate("q_proj_", "k_proj_", "v_proj_", "out_proj.");
    result.insert("in_proj_bias", stack(result["q_proj_bias"], result["k_proj_bias"], result["v_proj_bias"]));
    for (const char* name : {"q_proj_bias", "k_proj_bias", "v_proj_bias"}) {
      result.erase(name);
    }
  } else if (layout == "annotated-transformer") {
    separate("linears.0.", "linears.1.", "linears.2.", "linears.3.");
  } else if (layout == "bert") {
    separate("self.query.", "self.key.", "self.value.", "output.dense.");
  } else if (layout == "distilbert") {
    separate("q_lin.", "k_lin.", "v_lin.", "out_lin.");
  } else if (layout == "hf-vit") {
    separate("attention.query.", "attention.key.", "attention.value.", "output.dense.");
  } else if (layout == "timm") {
    together("qkv.", "proj.", stack);
  } else if (layout == "gpt2" || layout == "nanogpt") {
    together("c_attn.", "c_proj.", stack);
    for (const char* name : {"c_attn.weight", "c_proj.weight"}) {
      result[name] = layout == "gpt2" ? result[name].t().contiguous() : result[name];
    }
  } else if (layout == "llama") {
    separate("q_proj.", "k_proj.", "v_proj.", "o_proj.");
  } else if (layout == "meta-llama") {
    separate("wq.", "wk.", "wv.", "wo.");
  } else if (layout == "torchtune") {
    separate("q_proj.", "k_proj.", "v_proj.", "output_proj.");
  } else if (layout == "bart") {
    separate("q_proj.", "k_proj.", "v_proj.", "out_proj.");
  } else if (layout == "t5") {
    separate("q.", "k.", "v.", "o.");
    result["q.weight"] = result["q.weight"] / 2;  // sqrt(d_k): exact in any dtype
    for (const char* name : {"q.bias", "k.bias", "v.bias", "o.bias"}) {
      result.erase(name);
    }
  } else if (layout == "mpnet") {
    separate("q.", "k.", "v.", "o.");
  } else if (layout == "gpt-neox") {
    together("query_key_value.", "dense.", head_by_head);
  } else if (layout == "x-transformers") {
    separate("to_q.", "to_k.", "to_v.", "to_out.");
  } else if (layout == "diffusers") {
    separate("to_q.", "to_k.", "to_v.", "to_out.0.");
  } else if (layout == "qkv-layer") {
    together("qkv_layer.", "linear_layer.", head_by_head);
  } else {
    FAIL("no such layout: " << layout);
  }
  return result;
}

/// The same names in the same order, the same bits.
inline void check_equal(const StateDict& ours, const StateDict& expected) {
  REQUIRE(ours.keys() == expected.keys());
  for (const auto& item : expected) {
    INFO(item.key());
    CHECK(bit_equal(ours[item.key()], item.value()));
  }
}

}  // namespace mha::testing
