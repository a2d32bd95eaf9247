#include "rondo/dist/launcher/launch_options.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "rondo/dist/launcher/node.h"
#include "rondo/runtime/base/usable_cores.h"

namespace rondo::dist {
namespace {

constexpr int kMostProcesses = 1024;

// Returns the number of processes that --nproc-per-node asks for.
int parse_process_count(const std::string& text) {
  int value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= 1 && value <= kMostProcesses) return value;
  if (text == "cpu") return usable_cores();
  if (text != "gpu" && text != "auto")
    throw Error(absl::StrCat("--nproc-per-node=", text, ": must be a number from 1 to ", kMostProcesses,
                             ", or gpu, cpu or auto (a process for each GPU; for each core; for each GPU, or core if "
                             "there is none)"));
  std::string why_not;
  if (const int n = count_gpus(&why_not); n > 0) return n;
  if (text == "auto") return usable_cores();
  throw Error("--nproc-per-node=gpu: no GPU was found: " + why_not);
}

}  // namespace

LaunchOptions parse_launch_options(const std::vector<std::string>& args) {
  LaunchOptions options;
  bool has_count = false;
  size_t i = 0;
  for (; i < args.size() && args[i].starts_with("-"); ++i) {
    const size_t equals = args[i].find('=');
    const std::string name = absl::StrReplaceAll(args[i].substr(0, equals), {{"_", "-"}});
    const auto value_text = [&] {
      const bool inside = equals != std::string::npos;
      if (!inside && i + 1 == args.size()) throw Error(absl::StrCat(name, " needs a value"));
      return inside ? args[i].substr(equals + 1) : args[++i];
    };
    const auto number = [&](int least, int most) {
      const std::string text = value_text();
      int value = 0;
      if (!absl::SimpleAtoi(text, &value) || value < least || value > most)
        throw Error(absl::StrCat(name, "=", text, ": must be a number from ", least, " to ", most));
      return value;
    };
    if (name == "--") {
      ++i;
      break;
    }
    if (name == "--help" || name == "-h") return options.help = true, options;
    if (name == "--nproc-per-node") options.nproc_per_node = parse_process_count(value_text()), has_count = true;
    else if (name == "--max-restarts") options.max_restarts = number(0, 1000);
    else if (name == "--master-port") options.master_port = number(1, 65535);
    else if (name == "--grace-period") options.grace_period = Milliseconds(1000) * number(0, 3600);
    else if (name == "--no-prefix") options.prefix = false;
    else if (name == "--standalone") continue;  // as in torchrun: one machine
    else if (name == "--nnodes") {
      if (const std::string n = value_text(); n != "1")
        throw Error(absl::StrCat("--nnodes=", n, ": rondorun starts the processes of one machine only (--nnodes=1)"));
    } else throw Error(absl::StrCat("unknown option ", args[i], " (--help lists all)"));
  }
  options.command.assign(args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
  if (options.command.empty()) throw Error("no program to run (--help tells more)");
  if (!has_count) throw Error("--nproc-per-node is missing: how many processes to start");
  return options;
}

std::string launch_usage() {
  return R"(Starts the processes of a data parallel job on this machine.

Usage: rondorun --nproc-per-node N [options] program [arguments ...]

  --nproc-per-node N    processes to start, one rank each; gpu: one for each GPU, cpu: for each core, auto: for each GPU,
                        or core if there is none
  --max-restarts N      after a failure start all ranks again, at most N times (0); TORCHELASTIC_RESTART_COUNT tells them
  --master-port PORT    MASTER_PORT for programs with a store of their own; must be free (default: any free port)
  --grace-period S      seconds between asking the ranks to end and killing them (5)
  --no-prefix           lines of output as they are, without "[rank 1] "
  --nnodes 1            machines; more than one is not supported yet
  --help

Each process gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
the others), RONDO_STORE and RONDO_STORE_TOKEN. OMP_NUM_THREADS and RONDO_NUM_THREADS are the cores divided by N, unless
they are set. Standard input is empty. A rank that fails ends all ranks, with every process that they started; then the
job ends, or starts again from the ranks' last checkpoint (--max-restarts). rondorun exits with the code of the rank that
failed first, or 128 + n for signal n.
)";
}

}  // namespace rondo::dist
