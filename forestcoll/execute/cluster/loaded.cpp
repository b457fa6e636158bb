// A wire whose code is in a library of its own, so that this one needs nothing that it needs.

#include <dlfcn.h>

#include <stdexcept>

#include "wire.hpp"

namespace forestcoll {

std::unique_ptr<Wire> load_wire(const std::vector<std::string>& libraries, int processes, int self,
                                const Arena& arena) {
  void* library = nullptr;
  for (const std::string& path : libraries)
    if (!(library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL))) throw std::runtime_error(dlerror());
  const auto open = reinterpret_cast<decltype(&forestcoll_open)>(dlsym(library, "forestcoll_open"));
  if (!open) throw std::runtime_error(dlerror());
  return std::unique_ptr<Wire>(open(processes, self, arena));
}

}  // namespace forestcoll
