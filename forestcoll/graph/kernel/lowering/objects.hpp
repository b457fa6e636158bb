// Objects of program/program.py, made without their classes' own `__init__`: that fills in a frozen object
// name by name, which takes ten times as long.
#pragma once

#include <nanobind/nanobind.h>
#include <structmember.h>

#include <initializer_list>
#include <vector>

namespace forestcoll {

// An attribute; `name` is interned.
inline nanobind::object get(nanobind::handle owner, nanobind::handle name) {
  PyObject* value = PyObject_GetAttr(owner.ptr(), name.ptr());
  if (!value) throw nanobind::python_error();
  return nanobind::steal(value);
}

// A tuple of the objects that `make` returns for the items.
template <class Items, class Make>
nanobind::object tuple_of(const Items& items, Make&& make) {
  nanobind::object tuple = nanobind::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  if (!tuple.is_valid()) throw nanobind::python_error();
  Py_ssize_t place = 0;
  for (const auto& item : items) PyTuple_SET_ITEM(tuple.ptr(), place++, nanobind::object(make(item)).release().ptr());
  return tuple;
}

// A class with slots.
class Factory {
 public:
  // `blank`: one of its objects, whose fields those have that are not told.
  explicit Factory(nanobind::object blank) : type_(nanobind::borrow(blank.type())) {
    for (nanobind::handle name : blank.attr("__slots__")) {
      const nanobind::object slot = get(type_, name);
      offsets_.push_back(reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member->offset);
      blanks_.push_back(get(blank, name));
    }
  }

  // An object of these fields, in their order; null, and the rest: as in the blank one.
  nanobind::object operator()(std::initializer_list<const nanobind::object*> fields) const {
    auto* const type = reinterpret_cast<PyTypeObject*>(type_.ptr());
    nanobind::object fresh = nanobind::steal(type->tp_alloc(type, 0));
    if (!fresh.is_valid()) throw nanobind::python_error();
    for (std::size_t k = 0; k < offsets_.size(); ++k) {
      const nanobind::object* field = k < fields.size() ? fields.begin()[k] : nullptr;
      auto* const place = reinterpret_cast<char*>(fresh.ptr()) + offsets_[k];
      *reinterpret_cast<PyObject**>(place) = nanobind::object(field ? *field : blanks_[k]).release().ptr();
    }
    return fresh;
  }

 private:
  nanobind::object type_;
  std::vector<Py_ssize_t> offsets_;  // of the slots, which are empty in a fresh object
  std::vector<nanobind::object> blanks_;
};

}  // namespace forestcoll
