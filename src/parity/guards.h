// What a verification changes about its thread, and what of the caller it keeps out.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace mha::parity {

/// Sets the number of threads for a scope.
class ThreadsGuard {
 public:
  explicit ThreadsGuard(int threads) : before_(at::get_num_threads()) {
    if (threads > 0) {
      at::set_num_threads(threads);
    }
  }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;
  ~ThreadsGuard() { at::set_num_threads(before_); }

 private:
  int before_;
};

/// Keeps the caller's autocast, InferenceMode and default dtype out of a scope: none of them is part of a case.
class PlainModeGuard {
 public:
  explicit PlainModeGuard(torch::Device device)
      : inference_mode_(false),
        device_(device.type()),
        autocast_(at::autocast::is_autocast_enabled(device.type())),
        default_dtype_(torch::get_default_dtype()) {
    at::autocast::set_autocast_enabled(device_, false);
    torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  }
  PlainModeGuard(const PlainModeGuard&) = delete;
  PlainModeGuard& operator=(const PlainModeGuard&) = delete;
  ~PlainModeGuard() {
    torch::set_default_dtype(default_dtype_);
    at::autocast::set_autocast_enabled(device_, autocast_);
  }

 private:
  c10::InferenceMode inference_mode_;
  c10::DeviceType device_;
  bool autocast_;
  caffe2::TypeMeta default_dtype_;
};

}  // namespace mha::parity
