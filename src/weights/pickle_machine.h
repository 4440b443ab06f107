/// What a pickle is read with: its bytes, a stack with marks, a memo, and a budget for all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mha/error.h"
#include "weights/pickle_value.h"

namespace mha::weights {

/// Memory that one pickle may take beyond its own bytes and as much as its file takes. A tensor takes about
/// 1.8 KB of it: 90 000 of them fit into any file, and more into one that also holds their data.
inline constexpr std::size_t kPickleBudget = std::size_t{160} << 20;

// What things take at most, with the room that growing vectors hold.
inline constexpr std::size_t kSlotBytes = 2 * sizeof(PickleValue);
inline constexpr std::size_t kNodeBytes = sizeof(PickleNode) + 32;
inline constexpr std::size_t kMemoBytes = 2 * sizeof(std::optional<PickleValue>);

/// Meant as a base: the opcodes are a matter of whoever derives from it.
class PickleMachine {
 protected:
  /// Errors begin with `where`, which must outlive this, as `bytes` must.
  PickleMachine(std::span<const std::byte> bytes, const std::string& where, std::size_t budget)
      : budget_(budget), text_(reinterpret_cast<const char*>(bytes.data()), bytes.size()), where_(where) {}

  std::size_t position() const { return at_; }

  std::string_view take(std::uint64_t size) {
    if (size > text_.size() - at_) {
      refuse("expected " + std::to_string(size) + " more bytes, found " + std::to_string(text_.size() - at_) +
             " (cut short)");
    }
    const std::string_view taken = text_.substr(at_, static_cast<std::size_t>(size));
    at_ += taken.size();
    return taken;
  }

  template <typename Number>
  Number read() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  /// The text up to the end of the line.
  std::string_view line() {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) {
      refuse("expected the end of a line, found none (cut short)");
    }
    const std::string_view found = take(end - at_);
    take(1);
    return found;
  }

  PickleValue text(PickleValue::Kind kind, std::uint64_t size) {
    if (size > std::numeric_limits<std::uint32_t>::max()) {
      refuse("expected text of less than 4 GiB, found " + std::to_string(size) + " bytes");
    }
    return PickleValue::text(kind, take(size));
  }

  static PickleValue long_integer(std::string_view bytes) {
    if (bytes.size() > sizeof(std::int64_t)) {
      return PickleValue::text(PickleValue::Kind::kBigInteger, bytes);
    }
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80u) != 0;
    std::int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return PickleValue::integer(value);
  }

  void push(PickleValue value) {
    if (stack_.size() == stack_charged_) {
      charge(kSlotBytes);
      ++stack_charged_;
    }
    stack_.push_back(value);
  }

  std::size_t above_mark() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  void check_above_mark(std::size_t count) const {
    if (above_mark() < count) {
      refuse("expected " + std::to_string(count) + " values on the stack, found " +
             std::to_string(above_mark()));
    }
  }

  PickleValue top() const {
    check_above_mark(1);
    return stack_.back();
  }

  PickleValue pop() {
    const PickleValue value = top();
    stack_.pop_back();
    return value;
  }

  void push_mark() {
    charge(kSlotBytes);
    marks_.push_back(stack_.size());
  }

  /// As Python pops: a mark that lies on top goes alone.
  void pop_or_mark() {
    if (!marks_.empty() && marks_.back() == stack_.size()) {
      marks_.pop_back();
    } else {
      pop();
    }
  }

  std::vector<PickleValue> pop_many(std::size_t count) {
    check_above_mark(count);
    std::vector<PickleValue> values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }

  std::vector<PickleValue> pop_to_mark() {
    if (marks_.empty()) {
      refuse("expected a mark on the stack, found none");
    }
    std::vector<PickleValue> values = pop_many(above_mark());
    marks_.pop_back();
    return values;
  }

  /// The number that a memo without one gets.
  std::size_t next_memo() const { return memo_.size(); }

  void put(std::size_t index) {
    const PickleValue value = top();
    if (index >= memo_.size()) {
      const std::size_t more = index + 1 - memo_.size();
      charge(more > budget_ / kMemoBytes ? budget_ : more * kMemoBytes);
      memo_.resize(index + 1);
    }
    memo_[index] = value;
  }

  void get(std::size_t index) {
    if (index >= memo_.size() || !memo_[index]) {
      refuse("expected a memo of number " + std::to_string(index) + ", found none");
    }
    push(*memo_[index]);
  }

  void charge(std::size_t bytes) {
    if (bytes > budget_ - spent_) {
      refuse("expected values of at most " + std::to_string(kPickleBudget >> 20) +
             " MiB, found more (beyond the size of the file)");
    }
    spent_ += bytes;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(where_ + ": byte " + std::to_string(at_) + " of the pickle: " + why);
  }

 private:
  std::size_t budget_;
  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::vector<PickleValue> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::vector<std::optional<PickleValue>> memo_;
  std::size_t stack_charged_ = 0;
  std::size_t spent_ = 0;
};

}  // namespace mha::weights
