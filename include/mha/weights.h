/// Weights from and to files, and into any module.
///
/// File errors are `mha::Error`; a state dict that does not fit a module is a `c10::Error`.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mha/error.h"
#include "mha/export.h"
#include "mha/state_dict.h"

namespace mha {

/// A file's tensors together with what else is known of it.
struct MHA_EXPORT WeightsFile {
  /// On the CPU, in the order of the file: of the data in safetensors, of the keys in an index or a pickle.
  StateDict tensors;
  /// The `__metadata__` of a safetensors file; the texts, numbers and truth values of an index's `metadata`;
  /// empty when there is none.
  std::map<std::string, std::string> metadata = {};  // NOLINT(readability-redundant-member-init)
  /// What the file is, by its name in the table of `read_weights`, such as `safetensors`.
  std::string format = {};  // NOLINT(readability-redundant-member-init)
};

/// How `read_weights` reads.
struct MHA_EXPORT ReadOptions {
  /// Whether to compare the CRC-32 of every entry of a zip archive that is read; the other formats have no
  /// checksums. It takes a pass over all bytes. Files that were written under
  /// `torch.serialization.set_crc32_options(False)` have no real CRCs and fail.
  bool verify_checksums = false;
};

/// Reads every tensor of `path`, recognising the format by content, never by name. No code in a file is run.
///
/// | `WeightsFile::format` | what it is | names |
/// |---|---|---|
/// | `safetensors` | safetensors (every dtype but those of less than a byte) | as they stand |
/// | `safetensors-index` | `model.safetensors.index.json` with its shards | those of the index |
/// | `torch-index` | `pytorch_model.bin.index.json` with its shards | those of the index |
/// | `torch-save` | `torch.save` of dicts, lists, tuples, nested | keys and indices, joined by dots |
/// | | `torch.save` of a module, or of dicts and lists of them | those of `state_dict()` |
/// | `torch-save-legacy` | the same in the format of before PyTorch 1.6 | the same |
/// | `torchscript` | TorchScript, traced or scripted | see below |
/// | `torch-save-cpp` | C++'s `torch::save` of modules, tensors, lists of tensors | those of the module |
///
/// A tensor saved alone has the empty name. What is no tensor is left out, and so are tensors inside objects
/// of unknown classes that are no modules. Tensors come to the CPU, without `requires_grad`; two that shared
/// memory when they were saved share it again. Refused by name: meta, sparse, quantized and nested tensors.
///
/// **TorchScript**: the names of the loaded module's `state_dict()`, buffers of `persistent=False` among them,
/// as there; tensors in attributes that are lists, tuples, dicts or other objects; and buffers declared
/// `Optional[Tensor]`, which a loaded module's `state_dict()` forgets. Attributes that are tensors, but neither
/// parameters nor buffers, are left out as there; where the archive holds no source of a class to tell them
/// apart, or more than 8 MiB of source, they are listed.
///
/// **An index** names a shard for each tensor. Shards are plain file names beside it, without folders, and
/// hold their tensors; what else a shard holds is ignored, as `transformers` does. The index itself must stay
/// beside its shards; a symbolic link to it is not followed to find them.
///
/// **Lifetime**: nothing is copied where that can be avoided. Tensors are views of a mapping of the file, which
/// lives as long as one of them does; the file may be renamed, replaced or deleted meanwhile. It must not be
/// shortened or overwritten in place: touching what is gone kills the process (SIGBUS). The mapping is private
/// and writable: writing to a tensor changes neither the file nor what others read. Only deflated data, and
/// data that does not lie on a multiple of its item size (common in the format of before 1.6), are copied.
/// Clone a tensor before arithmetic whose last bits matter: mapped data is aligned to its item size only, and
/// alignment can change the order in which a kernel adds.
///
/// Throws `mha::Error` when the file cannot be opened or breaks a rule of its format; never returns part of a
/// file. Checksums are compared on request only.
MHA_EXPORT StateDict read_weights(const std::filesystem::path& path, const ReadOptions& options = {});

/// As `read_weights`, with the file's metadata and format.
MHA_EXPORT WeightsFile read_weights_file(const std::filesystem::path& path, const ReadOptions& options = {});

/// How `write_weights` writes.
struct MHA_EXPORT WriteOptions {
  /// Called after each piece of at most 16 MiB with the bytes written so far and those of the whole file, in
  /// the thread that writes. What it throws ends the writing, and leaves no file or the old one.
  std::function<void(std::uint64_t written, std::uint64_t total)> progress =
      {};  // NOLINT(readability-redundant-member-init)
};

/// Writes `tensors` (any strides, any device) to a temporary name beside `path`, then renamed, so that `path`
/// never holds part of a file. A symbolic link at `path` stays one. The same arguments give the same bytes.
///
/// A suffix of `.pt`, `.pth`, `.bin` or `.ckpt`, in small or capital letters, gives what `torch.save` writes
/// for a dict of tensors, for Python's `torch.load` in any of its modes. Any other gives safetensors.
///
/// - **safetensors**: tensors of larger items come first, so that all are aligned without gaps, otherwise in
///   the given order. Shared or strided tensors are written out in full, row-major.
/// - **torch.save**: in the given order, each record aligned to 64 bytes. Tensors that overlap in memory and
///   are of one dtype stay so: they share one record, with their strides, unless what they span together takes
///   more bytes than each on its own, row-major; then, and otherwise, each has its own record. A single tensor
///   keeps its strides by the same rule. There is no place for metadata: any is an error.
///
/// Throws `mha::Error` when a tensor is undefined, sparse, quantized, on the meta device or of a dtype that
/// the format lacks (complex128 in safetensors), when a name or metadata is not UTF-8, or when the file
/// cannot be written.
MHA_EXPORT void write_weights(const std::filesystem::path& path, const StateDict& tensors,
                              const std::map<std::string, std::string>& metadata = {},
                              const WriteOptions& options = {});

/// How `load_state_dict` finds a module's tensors in a state dict.
struct MHA_EXPORT LoadOptions {
  /// Only names under this prefix count, with or without its final dot. Empty: all names.
  ///
  /// Full names are tried first. When they lack some of the module's names, names with wrappers stripped are
  /// taken if they give more: `_orig_mod` components (torch.compile) and leading `module` ones
  /// (DataParallel), in any order. Names that become equal then are an error, and so is a prefix that matches
  /// nothing.
  std::string prefix = {};  // NOLINT(readability-redundant-member-init)

  /// How the names and packing of an attention block are mapped to the lesson's: one of `layout_names()`, or
  /// `auto` for the one that fits. Empty: names stay as they are.
  std::string layout = {};  // NOLINT(readability-redundant-member-init)

  /// Needed by layouts that keep query, key and value head by head (`gpt-neox`, `qkv-layer`) and by `t5`,
  /// whose file does not say it. Where given, it must divide d_model; that it is the module's own is up to you:
  /// a state dict does not tell. `num_heads_beside` finds it in a `config.json`.
  std::optional<int64_t> num_heads = std::nullopt;
};

/// The known layouts. `*` stands for `weight` and for `bias`; a missing bias counts as zero.
///
/// | name | query, key, value; output | found in |
/// |---|---|---|
/// | lesson | `W_q.*`, `W_k.*`, `W_v.*`; `W_o.*` | `mha::MultiHeadAttention` |
/// | pytorch | `in_proj_*` stacked; `out_proj.*` | `torch.nn.MultiheadAttention` |
/// | pytorch-separate | `q_proj_weight`, ..., `in_proj_bias`; `out_proj.*` | the same with kdim or vdim |
/// | annotated-transformer | `linears.0.*`, `.1`, `.2`; `linears.3.*` | The Annotated Transformer |
/// | bert | `self.query.*`, `.key`, `.value`; `output.dense.*` | BERT, RoBERTa, ELECTRA |
/// | distilbert | `q_lin.*`, `k_lin.*`, `v_lin.*`; `out_lin.*` | DistilBERT |
/// | hf-vit | `attention.query.*`, `.key`, `.value`; `output.dense.*` | ViT of transformers |
/// | timm | `qkv.*` stacked; `proj.*` | ViT of timm |
/// | gpt2 | `c_attn.*` stacked; `c_proj.*`; both (in, out) | GPT-2 of transformers |
/// | nanogpt | `c_attn.*` stacked; `c_proj.*` | nanoGPT |
/// | llama | `q_proj.*`, `k_proj.*`, `v_proj.*`; `o_proj.*` | LLaMA, Mistral, Qwen |
/// | meta-llama | `wq.*`, `wk.*`, `wv.*`; `wo.*` | LLaMA as Meta publishes it |
/// | torchtune | `q_proj.*`, `k_proj.*`, `v_proj.*`; `output_proj.*` | torchtune |
/// | bart | `q_proj.*`, `k_proj.*`, `v_proj.*`; `out_proj.*` | BART, Whisper, CLIP, OPT |
/// | t5 | `q.*`, `k.*`, `v.*`; `o.*`; no bias, no 1/sqrt(d_k) | T5 |
/// | mpnet | `q.*`, `k.*`, `v.*`; `o.*`; with biases | MPNet |
/// | gpt-neox | `query_key_value.*` as (num_heads, 3, d_k); `dense.*` | GPT-NeoX, Pythia, BLOOM |
/// | x-transformers | `to_q.*`, `to_k.*`, `to_v.*`; `to_out.*` | x-transformers |
/// | diffusers | `to_q.*`, `to_k.*`, `to_v.*`; `to_out.0.*` | diffusers |
/// | qkv-layer | `qkv_layer.*` as (num_heads, 3, d_k); `linear_layer.*` | tutorials |
MHA_EXPORT std::vector<std::string> layout_names();

/// Whether a layout can only be mapped when the number of heads is known; false for an unknown name.
MHA_EXPORT bool needs_num_heads(const std::string& layout);

/// The number of heads that the `config.json` beside `weights_file` tells, where transformers puts it; nothing
/// when there is no such file or it does not tell.
///
/// | key | models |
/// |---|---|
/// | `num_attention_heads` | most: BERT, LLaMA, ViT, GPT-NeoX, ... |
/// | `n_head`, `n_heads`, `num_heads` | GPT-2, BLOOM; DistilBERT, XLM; T5, GPT-Neo |
/// | `encoder_attention_heads`, `decoder_attention_heads` | BART, Whisper |
///
/// They stand in the file's object or, in a model of several, in an object in it (`text_config`, ...). Objects
/// that tell another width (`hidden_size`, `d_model`, ...) than `d_model` are about other layers; `d_model` 0
/// means that it is unknown.
///
/// Throws `mha::Error` when the file is no JSON, tells different numbers, or a number that cannot be:
/// one that is not positive, does not divide `d_model`, or contradicts the width of a head (`head_dim`,
/// `d_kv`).
MHA_EXPORT std::optional<int64_t> num_heads_beside(const std::filesystem::path& weights_file,
                                                   int64_t d_model = 0);

/// What `to_lesson` did.
struct MHA_EXPORT LayoutReport {
  std::string layout;  ///< its name
  std::string caveat;  ///< what the model does more than the lesson, in one line; often empty
  std::vector<std::string> zero_biases;  ///< the lesson's names of biases that the file has not
  std::vector<std::string> ignored;      ///< names under the prefix that are no part of the projections
};

/// The projections of the block under `options.prefix` by the lesson's eight names (`W_q.weight`, `W_q.bias`,
/// ..., `W_o.bias`), in that order, whatever layout they have; an empty `options.layout` counts as `auto`.
///
/// Tensors are views of those in `state_dict` where they hold the same values in the same order, otherwise new
/// ones. A missing bias is zero. Other names under the prefix are ignored (LayerNorm, GPT-2's buffer `bias`,
/// ...), but those that tell of more maths are in the report's caveat.
///
/// For `t5`, W_q is multiplied by sqrt(d_k), computed in float64 and rounded once.
///
/// Names cannot tell everything: block-sparse or approximated attention (BigBird, Nystromformer, MRA, YOSO),
/// windows (Swin, Hiera) and Nezha's relative positions may leave no tensor. A reference case does tell.
///
/// Throws `c10::ValueError` when no layout or more than one fits, and when the block cannot be the lesson's
/// module: grouped key/value heads, other widths than d_model, `add_bias_kv`, adapters, quantised weights.
MHA_EXPORT StateDict to_lesson(const StateDict& state_dict, const LoadOptions& options = {},
                               LayoutReport* report = nullptr);

/// One attention block in a state dict.
struct MHA_EXPORT AttentionBlock {
  std::string prefix;   ///< without its final dot, for `LoadOptions::prefix`
  std::string layout;   ///< its name
  int64_t d_model = 0;  ///< 0 when the output's weight is not a matrix
  std::string caveat;   ///< what the model does more than the lesson, in one line; often empty
  std::string problem;  ///< why `to_lesson` refuses it; empty: it does not, given num_heads where needed
};

/// Every attention block in `state_dict`, whatever its layout, in the order of their outputs' names.
///
/// A block that more than one layout fits is there once for each. Only names, shapes and dtypes are looked at.
MHA_EXPORT std::vector<AttentionBlock> find_attention(const StateDict& state_dict);

/// Copies `state_dict` into the parameters and buffers of `module`, as Python's
/// `load_state_dict(strict=True)`.
///
/// All or nothing: every name, shape and dtype kind is checked before the first copy, and one `c10::Error`
/// lists all that is missing, unexpected or of another shape. Values are cast to the module's dtype and moved
/// to its device; the module's tensors keep their memory, dtype, device and `requires_grad`.
///
/// Refused: undefined, sparse, quantized and meta tensors on either side, complex values for a real tensor,
/// inference tensors outside InferenceMode, expanded parameters. Tied tensors take the value of their last
/// name in the module.
///
/// With `options.layout`, what is loaded is `to_lesson(state_dict, options)`, and `report` says what that did;
/// without a `report`, a caveat becomes a warning of LibTorch's (`TORCH_WARN`).
MHA_EXPORT void load_state_dict(torch::nn::Module& module, const StateDict& state_dict,
                                const LoadOptions& options = {}, LayoutReport* report = nullptr);

}  // namespace mha
