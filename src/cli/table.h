// Tables for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mha::cli {

enum class Align : uint8_t { left, right };

/// Rows of cells, each column as wide as its widest cell, remarks behind.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// One cell a column, in printable UTF-8.
  void add(std::vector<std::string> cells, std::string remark = "");

  /// The titles and all rows, a line each. `paint(row, column, cell)` returns a cell, as wide as it was, with
  /// its colours.
  using Paint = std::function<std::string(size_t row, size_t column, const std::string& cell)>;
  std::string text(const Paint& paint = {}) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::string remark;
  };

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

}  // namespace mha::cli
