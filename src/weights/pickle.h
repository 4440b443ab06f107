/// Reads Python pickles without running them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "weights/pickle_value.h"

namespace mha::weights {

/// The pickle at the front of `bytes`, which must outlive it: its text lies there.
///
/// Containers, numbers and text become values. Whatever a pickle would import is only its name, whatever it
/// would call is a record of the name and the arguments: nothing is ever called or imported. Protocols 2 to
/// 5, and of older ones what Python 2 wrote in binary mode.
///
/// An `mha::Error` that begins with `where` tells what is broken. Memory is bounded: every allocation is paid
/// for by bytes of the pickle, and by a budget that honest files are far from. It grows with `file_size`, the
/// bytes of the file around the pickle.
Pickle read_pickle(std::span<const std::byte> bytes, const std::string& where, std::size_t file_size = 0);

}  // namespace mha::weights
