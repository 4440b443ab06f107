#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/conversion.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "mha/error.h"
#include "support/file_suffix.h"
#include "support/quote.h"

namespace mha::cli {
namespace {

namespace fs = std::filesystem;

struct ConvertArguments {
  std::string in;
  std::string out;
  std::optional<std::string> prefix;
  std::string layout = "auto";
  int64_t num_heads = 0;
  bool keep_names = false;
  bool force = false;
  bool verify_checksums = false;
};

/// Before the work, not after.
void check_output(const ConvertArguments& arguments) {
  const fs::path path = arguments.out;
  if (!has_torch_suffix(path) && lower_suffix(path) != ".safetensors") {
    throw Error(show(path) + ": expected a name that ends in .safetensors, .pt, .pth, .bin or .ckpt, found " +
                (path.extension().empty() ? "none of them" : quote(path.extension().string())));
  }
  std::error_code ignored;
  if (!arguments.force && fs::exists(fs::symlink_status(path, ignored))) {
    throw Error(show(path) + ": expected a new file, found one that exists (--force replaces it)");
  }
}

std::string written_text(const std::string& out, const StateDict& tensors) {
  int64_t elements = 0;
  for (const auto& item : tensors) {
    elements += item.value().numel();
  }
  std::error_code ignored;
  const auto size = fs::file_size(out, ignored);
  return "written  " + show(out) + ": " + counted(tensors.size(), "tensor") + ", " +
         counted(static_cast<size_t>(elements), "element") +
         (ignored ? "" : ", " + exact_size_text(static_cast<int64_t>(size))) + "\n";
}

void write(const std::string& out, const Conversion& conversion) {
  Progress progress("writing");
  write_weights(out, conversion.tensors, conversion.metadata,
                {.progress = [&](uint64_t written, uint64_t total) { progress.show(written, total); }});
}

int run(const ConvertArguments& arguments) {
  check_output(arguments);
  const auto file = read_weights_file(arguments.in, {.verify_checksums = arguments.verify_checksums});
  ConversionOptions options;
  options.path = arguments.in;
  options.prefix = arguments.prefix;
  options.layout = arguments.layout;
  if (arguments.num_heads > 0) {
    options.num_heads = arguments.num_heads;
  }
  auto conversion = arguments.keep_names ? keep_names(file, options) : convert_block(file, options);
  if (has_torch_suffix(arguments.out)) {
    conversion.metadata.clear();  // files of PyTorch have none
  }
  write(arguments.out, conversion);
  print(stdout, "read     " + show(arguments.in) + " (" + file.format + ")\n" + conversion.text +
                    written_text(arguments.out, conversion.tensors));
  return all_passed;
}

}  // namespace

void add_convert(CLI::App& app, int& exit_status) {
  auto arguments = std::make_shared<ConvertArguments>();
  auto* command = app.add_subcommand(
      "convert", "Write an attention block of a weights file by the lesson's names (W_q, W_k, W_v, W_o)");
  command->add_option("IN", arguments->in, "Any readable file")->required();
  command
      ->add_option("OUT", arguments->out,
                   "What to write: .safetensors, or .pt, .pth, .bin, .ckpt for torch.load")
      ->required();
  command->add_option("--prefix", arguments->prefix,
                      "Prefix of the block's names, e.g. encoder.0.attn; not needed when there is one block");
  auto layouts = layout_names();
  layouts.insert(layouts.begin(), "auto");
  auto* layout =
      command
          ->add_option("--layout", arguments->layout,
                       "How the block is named and packed, e.g. bert; found by itself where one fits")
          ->check(CLI::IsMember(layouts))
          ->type_name("NAME");
  auto* num_heads = command
                        ->add_option("--num-heads", arguments->num_heads,
                                     "Number of heads; by default what a config.json beside IN tells")
                        ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command
      ->add_flag("--keep-names", arguments->keep_names,
                 "Keep all tensors (under the prefix) by their own names: change the format only")
      ->excludes(layout)
      ->excludes(num_heads);
  command->add_flag("--force", arguments->force, "Replace OUT if it exists; it may be IN");
  command->add_flag("--verify-checksums", arguments->verify_checksums,
                    "Compare the checksums of a zip archive's entries first");
  command->footer(
      "OUT appears whole or not at all. The number of heads is needed only where query, key and value are\n"
      "stored head by head (gpt-neox, qkv-layer) and for t5. What a model does more than the lesson between\n"
      "its projections, such as rotary embeddings, is told as a caveat.\n"
      "\n"
      "Exit status: 0 written, 1 never, 2 bad usage, unreadable input or nothing that can be converted.\n"
      "Examples: mha inspect pytorch_model.bin\n"
      "          mha convert pytorch_model.bin layer0.safetensors --prefix encoder.layer.0.attention\n"
      "          mha convert gpt_neox.pt layer3.pt --prefix layers.3.attention --num-heads 16\n"
      "          mha convert checkpoint.pt model.safetensors --keep-names");
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace mha::cli
