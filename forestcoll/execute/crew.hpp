// Ranks as processes: one for each, forked from this one, that runs launch after launch.
//
// They share memory with their parent and each other and nothing else; none outlives its parent, and
// all are gone, and waited for, when the crew is.

#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

#include "machine.hpp"

namespace forestcoll {

class Crew {
 public:
  // Everything that the machine refers to must stay as it is for as long as the crew exists.
  // std::system_error: a process cannot be made.
  explicit Crew(Machine& machine);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void begin();                    // the next launch, which is prepared
  std::optional<Death> death();    // the first rank found dead
  std::vector<Death> halted() const;  // ranks whose processes are stopped (SIGSTOP, debuggers)
  void kill();                     // all, and waits for them
  bool parked() const;             // everybody has seen the end of the launch
  bool mine() const;               // the calling thread made it: no other may let it live

 private:
  Machine& machine_;
  std::vector<pid_t> pids_;  // 0: dead and waited for
  pid_t thread_;
};

}  // namespace forestcoll
