// Decides whether a region that has compiled one recording may compile others, by the stance (compile.h) and
// CompileOptions::recompile_limit.
#pragma once

#include <string>

#include "rondo/compile/jit/executable.h"
#include "rondo/compile/options.h"
#include "rondo/compile/region/ledger.h"

namespace rondo::compile {

// Thread safe, as the ledger is.
class RecompilePolicy {
 public:
  RecompilePolicy(const CompileOptions& options, Ledger& ledger) : options_(options), ledger_(ledger) {}

  struct Verdict {
    bool eagerly = false;    // the new recording or backward runs eagerly, and was counted
    bool explained = false;  // an earlier eager run was explained, so this one need not be
    std::string warning;     // the first part of a warning for the user; the caller appends the reason
  };
  Verdict ask() const;
  // Returns ask().eagerly. Reports `why` to the user, unless an earlier eager run was explained.
  bool must_run_eagerly(const std::string& why) const;

  // Returns compile(). With Stance::kFailOnRecompile and `is_recompile`, no code may be generated: throws Error if
  // compile() needs to.
  template <class Compile> auto guarded(const std::string& why, bool is_recompile, Compile compile) const {
    if (!is_recompile || stance() != Stance::kFailOnRecompile) return compile();
    const ForbidCodeGeneration forbid;
    try {
      return compile();
    } catch (const CodeForbidden&) {
      throw_recompile(why);
    }
  }

 private:
  [[noreturn]] void throw_recompile(const std::string& why) const;

  const CompileOptions& options_;
  Ledger& ledger_;
};

}  // namespace rondo::compile
