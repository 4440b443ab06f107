#include <cstddef>
#include <fstream>
#include <string>
#include <system_error>

#include "mha/weights.h"
#include "support/quote.h"
#include "weights/model_config.h"

namespace mha {
namespace {

namespace fs = std::filesystem;

/// Those with the names of 21,000 classes have 2 MiB.
constexpr std::size_t kMaxConfigBytes = std::size_t{4} << 20;

std::string read_config(const fs::path& path) {
  const auto refuse = [&](const std::string& why) { throw Error(show(path) + ": " + why); };
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    refuse("expected a regular file, found something else");  // opening a FIFO would wait for ever
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    refuse("cannot open");
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) {
    refuse("cannot read");
  }
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMaxConfigBytes) {
    refuse("expected a config of at most " + std::to_string(kMaxConfigBytes) + " bytes, found more");
  }
  return text;
}

}  // namespace

std::optional<std::int64_t> num_heads_beside(const fs::path& weights_file, std::int64_t d_model) {
  // Beside the name that was given, not beside what a link there points to.
  const fs::path path = weights_file.parent_path() / "config.json";
  std::error_code error;
  if (!fs::exists(path, error)) {
    return std::nullopt;
  }
  const std::string file = show(path);
  return weights::choose_num_heads(weights::parse_model_config(read_config(path), file), d_model, file);
}

}  // namespace mha
