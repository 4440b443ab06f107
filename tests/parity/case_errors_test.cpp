// Every way in which a case file cannot be used, with its message.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "mha/parity.h"
#include "parity/case_testing.h"

using Catch::Matchers::ContainsSubstring;
using mha::testing::CaseBuilder;
using mha::testing::make_case;

namespace {

std::string case_error(const CaseBuilder& builder) {
  const auto message = mha::testing::error_of<mha::Error>([&] { builder.verify(); });
  CHECK(message.find('\n') == std::string::npos);
  CHECK_THAT(message, ContainsSubstring("case.safetensors: "));
  return message;
}

std::string metadata_error(const std::string& key, const std::string& value) {
  auto builder = make_case();
  builder.metadata[key] = value;
  return case_error(builder);
}

std::string tensor_error(const std::string& name, const torch::Tensor& tensor) {
  auto builder = make_case();
  builder.set(name, tensor);
  return case_error(builder);
}

}  // namespace

TEST_CASE("metadata errors name the key, what was expected and what was found") {
  CHECK_THAT(metadata_error("format", "mha.reference/2"),
             ContainsSubstring(
                 "metadata \"format\": expected \"mha.reference/1\", found \"mha.reference/2\"; export "
                 "the case again with scripts/export_reference.py"));
  CHECK_THAT(metadata_error("format", ""), ContainsSubstring("found none: this is no reference case"));
  CHECK_THAT(
      metadata_error("module", "Transformer"),
      ContainsSubstring("metadata \"module\": expected \"MultiHeadAttention\", found \"Transformer\""));
  CHECK_THAT(metadata_error("d_model", ""),
             ContainsSubstring("metadata \"d_model\": expected a value, found none"));
  for (const char* bad : {"0", "-1", "12.5", "twelve", "12 ", " 12", "99999999999999999999"}) {
    CHECK_THAT(metadata_error("d_model", bad),
               ContainsSubstring("metadata \"d_model\": expected a whole number within"));
    CHECK_THAT(metadata_error("num_heads", bad),
               ContainsSubstring("metadata \"num_heads\": expected a whole number within"));
  }
  CHECK_THAT(metadata_error("num_heads", "5"), ContainsSubstring("d_model must be divisible by num_heads"));
  CHECK_THAT(metadata_error("dropout", "much"),
             ContainsSubstring("metadata \"dropout\": expected a number, found \"much\""));
  CHECK_THAT(metadata_error("dropout", "nan"), ContainsSubstring("metadata \"dropout\""));
  CHECK_THAT(metadata_error("dropout", "1.5"),
             ContainsSubstring("expected a number within [0, 1], found \"1.5\""));
  CHECK_THAT(metadata_error("mode", "test"),
             ContainsSubstring("expected \"eval\" or \"train\", found \"test\""));
  CHECK_THAT(metadata_error("dtype", "int8"),
             ContainsSubstring("expected float32, float64, bfloat16 or float16, found \"int8\""));
  CHECK_THAT(metadata_error("device", "tpu"),
             ContainsSubstring("expected \"cpu\" or \"cuda\", found \"tpu\""));
  CHECK_THAT(metadata_error("num_threads", "0"),
             ContainsSubstring("metadata \"num_threads\": expected a whole number"));
  CHECK_THAT(metadata_error("num_threads", "1000000"), ContainsSubstring("within [1, 1024]"));
  CHECK_THAT(metadata_error("seed", "-1"), ContainsSubstring("metadata \"seed\": expected a whole number"));
  CHECK_THAT(metadata_error("init_seed", "x"),
             ContainsSubstring("metadata \"init_seed\": expected a whole number"));
  CHECK_THAT(metadata_error("tolerance", "-0.1"),
             ContainsSubstring("expected a number that is not negative"));
  CHECK_THAT(metadata_error("layout", "unheard-of"),
             ContainsSubstring("metadata \"layout\": expected auto, lesson, pytorch, "));
  CHECK(metadata_error("layout", "unheard-of").ends_with(", found \"unheard-of\""));
}

TEST_CASE("a train case with dropout needs a seed") {
  auto builder = make_case({.train = true});
  builder.metadata.erase("seed");
  CHECK_THAT(case_error(builder),
             ContainsSubstring("metadata \"seed\": expected a value, since mode is train with dropout"));
}

TEST_CASE("strides that do not fit are errors") {
  CHECK_THAT(
      metadata_error("strides/inputs/query", "12,1"),
      ContainsSubstring("expected one stride for each of the 3 dimensions of \"inputs/query\", found 2"));
  CHECK_THAT(
      metadata_error("strides/inputs/value", "72,12,1"),
      ContainsSubstring("expected one stride for each of the dimensions of a tensor that is not there"));
  CHECK_THAT(metadata_error("strides/inputs/query", "48,-12,1"),
             ContainsSubstring("expected a whole number"));
  CHECK_THAT(metadata_error("strides/inputs/query", "48,12,1,"),
             ContainsSubstring("expected a whole number"));
  CHECK_THAT(metadata_error("dropout", " 0.1"), ContainsSubstring("expected a number, found \" 0.1\""));
  CHECK_THAT(metadata_error("strides/inputs/query", "48,,1"), ContainsSubstring("expected a whole number"));
  CHECK_THAT(
      metadata_error("strides/inputs/query", "9223372036854775807,9223372036854775807,9223372036854775807"),
      ContainsSubstring("expected strides within memory"));
  // Rows that overlap, and a repeated dimension whose items differ, would be other inputs.
  CHECK_THAT(metadata_error("strides/inputs/query", "12,1,1"), ContainsSubstring("make them overlap"));
  CHECK_THAT(metadata_error("strides/inputs/query", "0,12,1"), ContainsSubstring("make them overlap"));
}

TEST_CASE("tensor errors name the tensor") {
  const auto x = torch::ones({2, 4, 12});
  CHECK_THAT(
      tensor_error("steps/W", x),
      ContainsSubstring("tensor \"steps/W\": expected a name of a reference case, found an unknown one"));
  for (const char* name : {"inputs/memory", "outputs/weights", "grads/mask", "float64/Q",
                           "float64/grads/mask", "query", "grad_outputs/weights", "grads/W_q"}) {
    CHECK_THAT(tensor_error(name, x), ContainsSubstring("found an unknown one"));
  }
  CHECK_THAT(tensor_error("grads/value", x),
             ContainsSubstring("expected a tensor \"inputs/value\" beside it"));
  CHECK_THAT(tensor_error("weights/W_x.weight", x), ContainsSubstring("W_x.weight"));
  CHECK_THAT(tensor_error("weights/W_q.weight", torch::ones({12, 13})), ContainsSubstring("W_q.weight"));
  CHECK_THAT(tensor_error("inputs/query", torch::ones({2, 4, 13})),
             ContainsSubstring("query: expected last dimension 12 (d_model), found shape (2, 4, 13)"));
  CHECK_THAT(tensor_error("inputs/mask", torch::ones({5, 5})),
             ContainsSubstring("mask: expected a shape that broadcasts"));
  CHECK_THAT(tensor_error("grad_outputs/output", torch::ones({2, 3, 12})),
             ContainsSubstring("tensor \"grad_outputs/output\": expected the shape and dtype of the output"));
  for (const char* name : {"inputs/query", "outputs/output"}) {
    auto builder = make_case();
    builder.tensors.erase(name);
    CHECK_THAT(case_error(builder),
               ContainsSubstring(std::string("expected a tensor \"") + name + "\", found none"));
  }
  auto no_cotangent = make_case();
  no_cotangent.tensors.erase("grad_outputs/output");
  CHECK_THAT(case_error(no_cotangent),
             ContainsSubstring("expected a tensor \"grad_outputs/output\" beside it"));
}

TEST_CASE("a module larger than the weights in the file is refused before it is made") {
  auto builder = make_case();
  builder.metadata["d_model"] = "16000002";
  CHECK_THAT(case_error(builder), ContainsSubstring("expected weights of four (d_model, d_model) matrices"));
}

TEST_CASE("a CUDA case without a CUDA device says what to do") {
  if (torch::cuda::is_available()) {
    SKIP("a CUDA device is here");
  }
  CHECK_THAT(metadata_error("device", "cuda"), ContainsSubstring("compare on the CPU with --device cpu"));
}
