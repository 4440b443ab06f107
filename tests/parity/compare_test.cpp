// The comparer: bits, distances, verdicts.
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>

#include "mha/parity.h"

using mha::parity::compare;
using mha::parity::overall;
using mha::parity::Requirement;
using mha::parity::Rule;
using mha::parity::TensorReport;
using mha::parity::Verdict;
using torch::Tensor;

namespace {

constexpr auto not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr auto inf = std::numeric_limits<float>::infinity();
const Rule tolerant = {.requirement = Requirement::tolerance, .tolerance = {}, .float64 = {}, .scale = 0};

Rule within(double tolerance) {
  return {.requirement = Requirement::tolerance, .tolerance = tolerance, .float64 = {}, .scale = 0};
}

TensorReport compare_values(const std::vector<float>& ours, const std::vector<float>& reference,
                            const Rule& rule = {}) {
  return compare("x", torch::tensor(ours), torch::tensor(reference), rule);
}

float next(float value, int steps) {
  for (int i = 0; i < steps; ++i) {
    value = std::nextafter(value, inf);
  }
  return value;
}

}  // namespace

TEST_CASE("equal bits are bit-exact") {
  const auto report = compare_values({1.5F, -2.0F, 0.0F}, {1.5F, -2.0F, 0.0F});
  CHECK(report.verdict == Verdict::bit_exact);
  CHECK(report.max_abs == 0);
  CHECK(report.max_rel == 0);
  CHECK(report.max_ulp == 0U);
  CHECK(report.mismatched == 0);
  CHECK(report.total == 3);
  CHECK(report.index.empty());
  CHECK(report.dtype == "float32");
  CHECK(report.shape == std::vector<int64_t>{3});
}

TEST_CASE("one flipped bit is found with its index, in every dtype") {
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kLong,
                           torch::kInt, torch::kShort, torch::kChar, torch::kByte}) {
    const auto reference = torch::arange(24, torch::kLong).view({2, 3, 4}).to(dtype);
    auto ours = reference.clone();
    auto* bytes = static_cast<uint8_t*>(ours.data_ptr());
    bytes[17 * ours.element_size()] ^= 1U;
    const auto report = compare("x", ours, reference);
    CHECK(report.verdict == Verdict::mismatch);
    CHECK(report.mismatched == 1);
    CHECK(report.index == std::vector<int64_t>{1, 1, 1});
    CHECK(report.max_ulp.has_value() == reference.is_floating_point());
    if (report.max_ulp) {
      CHECK(*report.max_ulp == 1);
    }
  }
}

TEST_CASE("NaN equals NaN at the same index only, whatever the payload") {
  CHECK(compare_values({not_a_number, 1}, {not_a_number, 1}).verdict == Verdict::bit_exact);
  CHECK(compare_values({-not_a_number, 1}, {not_a_number, 1}).verdict == Verdict::bit_exact);
  const auto moved = compare_values({not_a_number, 1}, {1, not_a_number}, within(1e9));
  CHECK(moved.verdict == Verdict::mismatch);
  CHECK(std::isnan(moved.max_abs));
  CHECK(moved.index == std::vector<int64_t>{0});
  CHECK(moved.mismatched == 2);
  // A NaN is worse than any difference, and stays the worst.
  const auto mixed = compare_values({5, not_a_number, 900}, {1, 1, 1}, within(1e9));
  CHECK(std::isnan(mixed.max_abs));
  CHECK(mixed.index == std::vector<int64_t>{1});
  CHECK(mixed.non_finite.nan == 1);
  CHECK(mixed.reference_non_finite.nan == 0);
  CHECK(mixed.note == "NaN or infinity that the other side does not have");
}

TEST_CASE("infinities are equal only to themselves") {
  CHECK(compare_values({inf, -inf}, {inf, -inf}).verdict == Verdict::bit_exact);
  for (const auto& [ours, reference] : {std::pair{inf, -inf}, std::pair{inf, 1.0F}, std::pair{1.0F, inf}}) {
    const auto report = compare_values({ours}, {reference}, within(1e30));
    CHECK(report.verdict == Verdict::mismatch);
    CHECK(std::isinf(report.max_abs));
  }
  CHECK(compare_values({std::numeric_limits<float>::max()}, {inf}).max_ulp == 1U);
}

TEST_CASE("-0 and +0 have other bits but are 0 ULP apart") {
  const auto report = compare_values({-0.0F}, {0.0F});
  CHECK(report.verdict == Verdict::mismatch);
  CHECK(report.max_ulp == 0U);
  CHECK(report.max_abs == 0);
  CHECK(report.max_rel == 0);
  CHECK(report.mismatched == 1);
  CHECK(report.index == std::vector<int64_t>{0});
  CHECK(compare_values({-0.0F}, {0.0F}, tolerant).verdict == Verdict::within_tolerance);
}

TEST_CASE("ULP distances count representable numbers, across zero too") {
  CHECK(compare_values({next(1.0F, 5)}, {1.0F}).max_ulp == 5U);
  const float tiny = std::numeric_limits<float>::denorm_min();
  CHECK(compare_values({tiny}, {-tiny}).max_ulp == 2U);
  CHECK(compare_values({3 * tiny}, {0.0F}).max_ulp == 3U);
  CHECK(compare_values({3 * tiny}, {-0.0F}).max_ulp == 3U);
  CHECK(compare_values({inf}, {-inf}).max_ulp == 2U * 0x7f800000U);
  const auto wide = compare("x", torch::tensor({std::numeric_limits<double>::infinity()}, torch::kDouble),
                            torch::tensor({-std::numeric_limits<double>::infinity()}, torch::kDouble));
  CHECK(wide.max_ulp == 2U * 0x7ff0000000000000ULL);
  const auto half =
      compare("x", torch::tensor({1.0F}).to(torch::kHalf), torch::tensor({1.0F + 0x1p-10F}).to(torch::kHalf));
  CHECK(half.max_ulp == 1U);
}

TEST_CASE("subnormals are numbers like others") {
  const float tiny = std::numeric_limits<float>::denorm_min();
  CHECK(compare_values({tiny}, {tiny}).verdict == Verdict::bit_exact);
  const auto report = compare_values({tiny}, {2 * tiny});
  CHECK(report.verdict == Verdict::mismatch);
  CHECK(report.max_rel == 0.5);
}

TEST_CASE("max abs and its index, max rel") {
  const auto report = compare("x", torch::tensor({{1.0F, 2.0F}, {3.0F, 104.0F}}),
                              torch::tensor({{1.0F, 1.0F}, {3.0F, 100.0F}}));
  CHECK(report.max_abs == 4);
  CHECK(report.index == std::vector<int64_t>{1, 1});
  CHECK(report.max_rel == 1);
  CHECK(report.mismatched == 2);
  CHECK(std::isinf(compare_values({1.0F}, {0.0F}).max_rel));
}

TEST_CASE("other shapes, dtypes and missing tensors are not comparable") {
  const auto x = torch::ones({2, 3});
  const auto shape = compare("x", x, torch::ones({3, 2}));
  CHECK(shape.verdict == Verdict::not_comparable);
  CHECK(shape.note == "the reference has shape (3, 2)");
  CHECK(compare("x", x, torch::ones({2, 3, 1})).verdict == Verdict::not_comparable);
  const auto dtype = compare("x", x, x.to(torch::kDouble));
  CHECK(dtype.verdict == Verdict::not_comparable);
  CHECK(dtype.note == "the reference is float64");
  CHECK(compare("x", {}, x).note == "missing here");
  CHECK(compare("x", x, {}).note == "missing in the reference");
}

TEST_CASE("tensors without dense data are not comparable, and say why") {
  const auto x = torch::ones({2, 3});
  CHECK(compare("x", x.to_sparse(), x).note == "not a dense tensor");
  CHECK(compare("x", x, x.to(torch::kMeta)).note == "a meta tensor, without data");
  CHECK(compare("x", {}, {}).verdict == Verdict::not_comparable);
}

TEST_CASE("all zeros on both sides are said to be so") {
  CHECK(compare_values({0, 0}, {0, 0}).all_zero);
  CHECK(compare_values({0, -0.0F}, {0, 0}).all_zero);
  CHECK_FALSE(compare_values({0, 1}, {0, 1}).all_zero);
  CHECK_FALSE(compare_values({0, 0}, {0, 1}).all_zero);
  CHECK_FALSE(compare("x", torch::empty({0}), torch::empty({0})).all_zero);
}

TEST_CASE("empty tensors are equal, but nothing passes on nothing alone") {
  const auto empty = compare("x", torch::empty({2, 0, 3}), torch::empty({2, 0, 3}));
  CHECK(empty.verdict == Verdict::bit_exact);
  CHECK(empty.total == 0);
  CHECK(compare("x", torch::empty({0, 3}), torch::empty({3, 0})).verdict == Verdict::not_comparable);
  CHECK(overall(std::vector<TensorReport>{}) == Verdict::not_comparable);
  CHECK(overall({empty}) == Verdict::not_comparable);
  CHECK(overall({empty, compare_values({1}, {1})}) == Verdict::bit_exact);
}

TEST_CASE("scalars and strided tensors are compared by value") {
  CHECK(compare("x", torch::tensor(1.0F), torch::tensor(1.0F)).verdict == Verdict::bit_exact);
  const auto differs = compare("x", torch::tensor(1.0F), torch::tensor(2.0F));
  CHECK(differs.verdict == Verdict::mismatch);
  CHECK(differs.index.empty());
  const auto x = torch::randn({4, 5});
  CHECK(compare("x", x.t().contiguous().t(), x).verdict == Verdict::bit_exact);
  CHECK(compare("x", x[0].expand({3, 5}), x[0].repeat({3, 1})).verdict == Verdict::bit_exact);
}

TEST_CASE("bool, unsigned, complex and float8 tensors compare") {
  const auto flags = torch::tensor({1, 0, 1}).to(torch::kBool);
  CHECK(compare("x", flags, flags).verdict == Verdict::bit_exact);
  CHECK(compare("x", flags, flags.logical_not()).mismatched == 3);
  const auto complex = torch::complex(torch::randn({3}), torch::randn({3}));
  CHECK(compare("x", complex, complex.clone()).verdict == Verdict::bit_exact);
  CHECK(compare("x", complex, complex.conj()).verdict == Verdict::mismatch);
  auto second = complex.clone();
  second[1] += 1;
  const auto pairs = compare("x", second, complex);
  CHECK(pairs.total == 3);
  CHECK(pairs.mismatched == 1);
  CHECK(pairs.index == std::vector<int64_t>{1});
  const auto small = torch::tensor({1.0F, 2.0F, 3.0F}).to(torch::kFloat8_e4m3fn);
  CHECK(compare("x", small, small.clone()).verdict == Verdict::bit_exact);
  const auto other = compare("x", torch::tensor({1.0F, 2.0F, 3.25F}).to(torch::kFloat8_e4m3fn), small);
  CHECK(other.max_abs == 0.25);
  CHECK_FALSE(other.max_ulp.has_value());
  const auto wide = torch::tensor({1, 2}, torch::kLong).to(torch::kUInt16);
  CHECK(compare("x", wide, wide.clone()).verdict == Verdict::bit_exact);
  // 2^62 and 2^62 + 1 are the same double.
  const auto large = torch::tensor({int64_t{1} << 62}, torch::kLong);
  const auto by_one = compare("x", large, large + 1, tolerant);
  CHECK(by_one.verdict == Verdict::mismatch);
  CHECK(by_one.max_abs == 1);
  const auto extremes = compare("x", torch::tensor({std::numeric_limits<int64_t>::min()}, torch::kLong),
                                torch::tensor({std::numeric_limits<int64_t>::max()}, torch::kLong));
  CHECK(extremes.max_abs == 0x1p64);
}

TEST_CASE("without anything else the tolerance is that of torch.testing by dtype") {
  CHECK(compare_values({1.0F + 1e-6F}, {1.0F}, tolerant).verdict == Verdict::within_tolerance);
  const auto beyond = compare_values({1.0F + 1e-4F}, {1.0F}, tolerant);
  CHECK(beyond.verdict == Verdict::mismatch);
  CHECK(beyond.note == "1 elements beyond the default tolerance of float32");
  CHECK(compare_values({1.0F + 1e-6F}, {1.0F}).verdict == Verdict::mismatch);
  const auto one = torch::ones({1}, torch::kDouble);
  CHECK(compare("x", one + 1e-6, one, tolerant).verdict == Verdict::mismatch);
  CHECK(compare("x", one + 1e-8, one, tolerant).verdict == Verdict::within_tolerance);
  const auto bfloat = torch::ones({1}).to(torch::kBFloat16);
  CHECK(compare("x", bfloat * 1.0078125, bfloat, tolerant).verdict == Verdict::within_tolerance);
  CHECK(compare("x", torch::tensor({1}), torch::tensor({2}), tolerant).verdict == Verdict::mismatch);
}

TEST_CASE("a stated tolerance scales with the largest reference, from 1") {
  CHECK(compare_values({0.05F}, {0.0F}, within(0.1)).verdict == Verdict::within_tolerance);
  CHECK(compare_values({0.2F}, {0.0F}, within(0.1)).verdict == Verdict::mismatch);
  CHECK(compare_values({109, 0}, {100, 0}, within(0.1)).verdict == Verdict::within_tolerance);
  CHECK(compare_values({111, 0}, {100, 0}, within(0.1)).verdict == Verdict::mismatch);
  CHECK(compare_values({1}, {1}, within(0)).verdict == Verdict::bit_exact);
}

TEST_CASE("a float64 twin allows twice the reference's own error and a few roundings") {
  const auto twin = torch::tensor({1.0, 2.0}, torch::kDouble);
  const auto rule = Rule{.requirement = Requirement::tolerance, .tolerance = {}, .float64 = twin, .scale = 0};
  const auto reference = torch::tensor({1.0F, 2.0F + 1e-3F});
  CHECK(compare("x", torch::tensor({1.0F + 1.9e-3F, 2.0F}), reference, rule).verdict ==
        Verdict::within_tolerance);
  const auto beyond = compare("x", torch::tensor({1.0F + 2.1e-3F, 2.0F}), reference, rule);
  CHECK(beyond.verdict == Verdict::mismatch);
  CHECK(beyond.note.starts_with("error against float64 is 0.0021, allowed 0.002"));
  // An exact reference still leaves 8 roundings of the largest value.
  const auto exact = torch::tensor({1.0F, 2.0F});
  CHECK(compare("x", torch::tensor({next(1.0F, 15), 2.0F}), exact, rule).verdict ==
        Verdict::within_tolerance);
  CHECK(compare("x", torch::tensor({next(1.0F, 17), 2.0F}), exact, rule).verdict == Verdict::mismatch);
  // NaN on both sides is no error, on one side always.
  const auto nan_twin =
      Rule{.requirement = Requirement::tolerance,
           .tolerance = {},
           .float64 = torch::tensor({static_cast<double>(not_a_number), 2.0}, torch::kDouble),
           .scale = 0};
  CHECK(compare("x", torch::tensor({not_a_number, next(2.0F, 1)}), torch::tensor({not_a_number, 2.0F}),
                nan_twin)
            .verdict == Verdict::within_tolerance);
  CHECK(compare("x", torch::tensor({1.0F, 2.0F}), torch::tensor({not_a_number, 2.0F}), nan_twin).verdict ==
        Verdict::mismatch);
  // Where only the twin is not finite it bounds nothing, so the defaults do.
  CHECK(compare("x", torch::tensor({500.0F, 2.0F}), torch::tensor({1.0F, 2.0F}), nan_twin).verdict ==
        Verdict::mismatch);
}

TEST_CASE("a reference far from its own float64 twin does not make anything pass") {
  const auto twin = torch::tensor({1.0, 2.0}, torch::kDouble);
  const auto rule = Rule{.requirement = Requirement::tolerance, .tolerance = {}, .float64 = twin, .scale = 0};
  for (const auto& broken : {torch::tensor({1.0F, 1e30F}), torch::zeros({2}), torch::tensor({2.0F, 1.0F})}) {
    const auto report = compare("x", torch::tensor({1.0F, 2.0F}), broken, rule);
    CHECK(report.verdict == Verdict::mismatch);
    CHECK(report.note.find("float64 twin cannot help") != std::string::npos);
    CHECK(compare("x", broken + broken * 1e-7F, broken, rule).verdict != Verdict::mismatch);
  }
}

TEST_CASE("what is rounding is measured by the numbers that were added up") {
  const auto eps = std::numeric_limits<float>::epsilon();
  auto rule = tolerant;
  rule.scale = 1e4;
  CHECK(compare_values({7e4F * eps}, {0.0F}, rule).verdict == Verdict::within_tolerance);
  CHECK(compare_values({9e4F * eps}, {0.0F}, rule).verdict == Verdict::mismatch);
  CHECK(compare_values({7e4F * eps}, {0.0F}, tolerant).verdict == Verdict::mismatch);
  CHECK(compare_values({not_a_number}, {0.0F}, rule).verdict == Verdict::mismatch);
}

TEST_CASE("state dicts are compared by name") {
  mha::StateDict a;
  a.insert("same", torch::ones({2}));
  a.insert("other", torch::ones({2}));
  a.insert("ours only", torch::ones({2}));
  mha::StateDict b;
  b.insert("other", torch::zeros({2}));
  b.insert("same", torch::ones({2}));
  b.insert("theirs only", torch::ones({3}));
  const auto report = compare(a, b);
  REQUIRE(report.tensors.size() == 4);
  CHECK(report.tensors[0].verdict == Verdict::bit_exact);
  CHECK(report.tensors[1].verdict == Verdict::mismatch);
  CHECK(report.tensors[2].note == "missing in the reference");
  CHECK(report.tensors[3].note == "missing here");
  CHECK(report.tensors[3].shape == std::vector<int64_t>{3});
  CHECK(report.verdict == Verdict::not_comparable);
  CHECK(report.first_divergence->name == "other");
  CHECK(compare(a, a).verdict == Verdict::bit_exact);
  CHECK(compare(mha::StateDict(), mha::StateDict()).verdict == Verdict::not_comparable);
}
