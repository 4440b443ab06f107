#include "weights/pickle_writer.h"

#include <limits>
#include <utility>

#include "weights/pickle_opcodes.h"

namespace mha::weights {
namespace {

void append(std::string& bytes, Opcode opcode) {
  bytes += static_cast<char>(opcode);
}

/// The lowest `count` bytes of `value`, lowest first.
void append(std::string& bytes, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    bytes += static_cast<char>((value >> (8 * i)) & 0xFFu);
  }
}

}  // namespace

PickleWriter::PickleWriter() {
  append(bytes_, Opcode::kProtocol);
  bytes_ += '\x02';
}

void PickleWriter::mark() {
  append(bytes_, Opcode::kMark);
}

void PickleWriter::empty_dict() {
  append(bytes_, Opcode::kEmptyDict);
}

void PickleWriter::set_items() {
  append(bytes_, Opcode::kSetItems);
}

void PickleWriter::tuple() {
  append(bytes_, Opcode::kTuple);
}

void PickleWriter::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value <= 0xFF) {
    append(bytes_, Opcode::kInt1);
    append(bytes_, bits, 1);
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    append(bytes_, Opcode::kInt);
    append(bytes_, bits, 4);
  } else {
    append(bytes_, Opcode::kLong1);
    append(bytes_, sizeof value, 1);
    append(bytes_, bits, sizeof value);
  }
}

void PickleWriter::integers(const std::vector<std::int64_t>& values) {
  mark();
  for (const std::int64_t value : values) {
    integer(value);
  }
  tuple();
}

void PickleWriter::boolean(bool value) {
  append(bytes_, value ? Opcode::kTrue : Opcode::kFalse);
}

void PickleWriter::text(std::string_view value) {
  append(bytes_, Opcode::kText);
  append(bytes_, value.size(), sizeof(std::uint32_t));
  bytes_ += value;
}

void PickleWriter::global(const std::string& module, const std::string& name) {
  const auto next = static_cast<std::uint32_t>(globals_.size());
  const auto [found, added] = globals_.emplace(module + "\n" + name + "\n", next);
  if (added) {
    append(bytes_, Opcode::kGlobal);
    bytes_ += found->first;
  }
  append(bytes_, added ? Opcode::kLongPut : Opcode::kLongGet);
  append(bytes_, found->second, sizeof(std::uint32_t));
}

void PickleWriter::reduce() {
  append(bytes_, Opcode::kReduce);
}

void PickleWriter::persistent() {
  append(bytes_, Opcode::kPersistent);
}

std::string PickleWriter::finish() && {
  append(bytes_, Opcode::kStop);
  return std::move(bytes_);
}

}  // namespace mha::weights
