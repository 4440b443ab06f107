#include "cli/table.h"

#include <algorithm>
#include <utility>

namespace mha::cli {
namespace {

/// Columns on a terminal, near enough: code points.
size_t width(const std::string& text) {
  constexpr unsigned char kind = 0xC0;
  constexpr unsigned char continuation = 0x80;
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & kind) != continuation;
  }));
}

}  // namespace

void Table::add(std::vector<std::string> cells, std::string remark) {
  rows_.push_back({std::move(cells), std::move(remark)});
}

std::string Table::text(const Paint& paint) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(width(columns_[i].title));
    for (const auto& row : rows_) {
      widths[i] = std::max(widths[i], width(row.cells[i]));
    }
  }
  std::string text;
  std::string line;
  const auto append = [&](size_t column, const std::string& shown, size_t shown_width) {
    const std::string padding(widths[column] - shown_width, ' ');
    line += "  ";
    line += columns_[column].align == Align::right ? padding + shown : shown + padding;
  };
  const auto end_line = [&] {
    text.append(line, 0, line.find_last_not_of(' ') + 1);
    text += '\n';
    line.clear();
  };
  for (size_t i = 0; i < columns_.size(); ++i) {
    append(i, columns_[i].title, width(columns_[i].title));
  }
  end_line();
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto& cell = rows_[r].cells[i];
      append(i, paint ? paint(r, i, cell) : cell, width(cell));
    }
    line += rows_[r].remark.empty() ? "" : "   " + rows_[r].remark;
    end_line();
  }
  return text;
}

}  // namespace mha::cli
