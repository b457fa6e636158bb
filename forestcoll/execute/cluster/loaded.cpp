// A wire whose code is in a library of its own, so that this one needs nothing that it needs.

#include <dlfcn.h>

#include <stdexcept>

#include "wire.hpp"

namespace forestcoll {

namespace {

void* load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw std::runtime_error(dlerror());
  return library;  // for as long as the process lives
}

template <typename Function>
Function* function_of(void* library, const char* name) {
  void* const function = dlsym(library, name);
  if (!function) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function*>(function);
}

}  // namespace

Loaded::Loaded(const std::vector<std::string>& libraries, int processes, int self, const Arena& arena) {
  void* library = nullptr;
  for (const std::string& path : libraries) library = load(path);
  begin_ = function_of<std::remove_pointer_t<decltype(begin_)>>(library, "forestcoll_begin");
  auto* const open = function_of<Wire*(int, int, const Arena*, std::string*, bool*, std::string*)>(
      library, "forestcoll_open");
  std::string error;
  wire_.reset(open(processes, self, &arena, &address_, &reaches_, &error));
  if (!wire_) throw std::runtime_error(error);
}

std::unique_ptr<Wire> Loaded::begin(Receiver& receiver, const std::vector<std::string>& addresses) {
  std::string error;
  begin_(wire_.get(), &receiver, &addresses, &error);
  if (!error.empty()) throw std::runtime_error(error);
  return std::move(wire_);
}

}  // namespace forestcoll
