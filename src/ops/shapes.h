// What calls refuse and return, by shapes alone: for tensors without values, whose sizes may be symbols. The texts are
// those of the library.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace mha::ops {

/// A ValueError unless `fits`, of which tracers make a guard or a check at run time.
void expect(const c10::SymBool& fits, const char* name, const std::string& expected,
            const torch::Tensor& found);

/// Errors for derivatives: none are taken, and none dropped silently.
void check_inference(const char* name, const torch::Tensor& tensor);

/// An error where torch.compile or torch.export traces a method that would act on the real object while they do.
void check_not_traced(const char* name);

/// What inputs must fit.
struct Expected {
  int64_t d_model;
  int64_t num_heads;
  torch::ScalarType dtype;
};

void check_dtype(const char* name, const torch::Tensor& tensor, torch::ScalarType expected,
                 const char* whose);

/// One input (B, L, D) and the batch it must have, which is `whose`.
void check_input(const Expected& expected, const char* name, const torch::Tensor& tensor,
                 const c10::SymInt& batch, const char* whose);

/// query (B, L, D), key and value (B, S, D), mask.
void check_call(const Expected& expected, const torch::Tensor& query, const torch::Tensor& key,
                const torch::Tensor& value, const std::optional<torch::Tensor>& mask);

/// query (B, H, L, d_k), key and value (B, H, S, d_k), mask.
void check_heads(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                 const std::optional<torch::Tensor>& mask);

}  // namespace mha::ops
