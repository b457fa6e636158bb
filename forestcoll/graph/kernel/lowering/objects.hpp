// Objects of program/program.py, made without their classes' own `__init__`: that fills in a frozen object
// name by name, which takes ten times as long.
#pragma once

#include "python.hpp"
#include <structmember.h>

namespace forestcoll {

// An attribute; `name` is interned.
inline nb::object get(nb::handle owner, nb::handle name) {
  PyObject* value = PyObject_GetAttr(owner.ptr(), name.ptr());
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

// A tuple of the objects that `make` returns for the items.
template <class Items, class Make>
nb::object tuple_of(const Items& items, Make&& make) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  if (!tuple.is_valid()) throw nb::python_error();
  Py_ssize_t place = 0;
  for (const auto& item : items) PyTuple_SET_ITEM(tuple.ptr(), place++, nb::object(make(item)).release().ptr());
  return tuple;
}

// A class with slots.
class Factory {
 public:
  // `blank`: one of its objects, whose fields those have that are not told.
  explicit Factory(nb::object blank) : type_(nb::borrow(blank.type())) {
    for (nb::handle name : blank.attr("__slots__")) {
      const nb::object slot = get(type_, name);
      offsets_.push_back(reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member->offset);
      blanks_.push_back(get(blank, name));
    }
  }

  // An object of these fields, in their order; null, and the rest: as in the blank one.
  nb::object operator()(std::initializer_list<const nb::object*> fields) const {
    auto* const type = reinterpret_cast<PyTypeObject*>(type_.ptr());
    nb::object fresh = nb::steal(type->tp_alloc(type, 0));
    if (!fresh.is_valid()) throw nb::python_error();
    for (int k : range(offsets_)) {
      const nb::object* field = k < fields.size() ? fields.begin()[k] : nullptr;
      auto* const place = reinterpret_cast<char*>(fresh.ptr()) + offsets_[k];
      *reinterpret_cast<PyObject**>(place) = nb::object(field ? *field : blanks_[k]).release().ptr();
    }
    return fresh;
  }

 private:
  nb::object type_;
  std::vector<Py_ssize_t> offsets_;  // of the slots, which are empty in a fresh object
  Objects blanks_;
};

}  // namespace forestcoll
