// Reports for programs: the format mha.report/1.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "mha/report.h"
#include "support/atomic_file.h"

namespace mha::cli {

/// Where the JSON of a run goes. Opened before the work, so that a path that cannot be written is told at
/// once.
class JsonOutput {
 public:
  /// A file, `-` for standard output, or nothing when empty. Throws `mha::Error`.
  explicit JsonOutput(const std::string& path);

  /// Writes the reports; a file appears whole or not at all. Throws `mha::Error`.
  void write(const std::vector<parity::CaseReport>& reports);

  /// The same for any JSON.
  void write(const nlohmann::ordered_json& json);

 private:
  bool to_standard_output_;
  std::optional<AtomicFile> file_;
};

}  // namespace mha::cli
