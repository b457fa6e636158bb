// MSCCL XML as nearly all files have it: plain tags, one order of attributes in every step.
//
// A plan has tens of thousands of steps, of which many say the same. Their words are tuples that those
// alike share, and their numbers are numbers. Whatever is written otherwise, be it right or wrong, is
// for text.py, which says what it means.
#include <nanobind/nanobind.h>

#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <unordered_map>

namespace nb = nanobind;

namespace {

using Text = std::string_view;

struct Otherwise {};  // it is written otherwise

void require(bool condition) {
  if (!condition) throw Otherwise();
}

constexpr std::array<Text, 10> kNames = {"s",      "type", "srcbuf", "srcoff", "dstbuf",
                                         "dstoff", "cnt",  "depid",  "deps",   "hasdep"};
constexpr int kMostAttributes = 16;

class Scanner {
 public:
  Scanner(Text text, long ranks, long blocks, long instructions)
      : text_(text), ranks_(ranks), blocks_(blocks), left_(instructions) {}

  // Of each element its line, its attributes, and the elements below it; of a step its line, its
  // words, and the numbers s, depid and deps.
  nb::tuple read() {
    skip_space();
    nb::tuple algo = element("algo", [&] { return below("gpu", ranks_, [&] { return gpu(); }); });
    skip_space();
    require(at_ == text_.size());
    return algo;
  }

 private:
  nb::tuple gpu() {
    return element("gpu", [&] { return below("tb", blocks_, [&] { return block(); }); });
  }

  nb::tuple block() {
    require(--left_ >= 0);
    return element("tb", [&] { return below("step", left_, [&] { return step(); }); });
  }

  void skip_space() {
    for (; at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n'); ++at_) line_ += text_[at_] == '\n';
  }

  bool take(Text word) {
    if (text_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }

  // A name or, up to the next quote, a value: of no letters that mean anything to a parser.
  Text until(char end) {
    const std::size_t first = at_;
    for (; at_ < text_.size() && text_[at_] != end; ++at_) {
      const char c = text_[at_];
      require(end == '"' ? c >= ' ' && c <= '~' && c != '&' && c != '<' && c != '>'
                         : (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_');
    }
    require(at_ < text_.size() && at_ - first <= 255);
    return text_.substr(first, at_++ - first);
  }

  template <class Below>
  nb::tuple element(Text name, const Below& below) {
    require(take("<") && take(name));
    const long line = line_;
    nb::dict attributes;
    int count = 0;
    while (take(" ")) {
      if (at_ < text_.size() && (text_[at_] == '/' || text_[at_] == '>')) break;
      const Text key = until('=');
      require(!key.empty() && take("\"") && ++count <= kMostAttributes);
      const nb::str word(key.data(), key.size());
      require(!attributes.contains(word));
      const Text value = until('"');
      attributes[word] = nb::str(value.data(), value.size());
    }
    if (take("/>")) return nb::make_tuple(line, attributes, nb::list());
    require(take(">"));
    nb::list inside = below();
    require(take("</") && take(name) && take(">"));
    return nb::make_tuple(line, attributes, inside);
  }

  template <class Read>
  nb::list below(Text name, long most, const Read& read) {
    nb::list elements;
    while (true) {
      skip_space();
      if (text_.compare(at_, 2, "</") == 0) return elements;
      require(static_cast<long>(elements.size()) < most);
      elements.append(read());
    }
  }

  nb::tuple step() {
    --left_;
    require(take("<step"));
    const long line = line_;
    std::array<Text, 10> values;
    for (std::size_t k = 0; k < kNames.size(); ++k) {
      require(take(" ") && take(kNames[k]) && take("=\""));
      values[k] = until('"');
    }
    take(" ");
    require(take("/>"));
    const auto words = shared_words(values);
    return nb::make_tuple(line, words, number(values[0]), number(values[7]), number(values[8]));
  }

  static int number(Text digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    require(error == std::errc() && end == digits.data() + digits.size());
    require(digits == "0" || (digits[0] != '0' && digits.substr(0, 2) != "-0"));  // no octal ones
    return value;
  }

  nb::object shared_words(const std::array<Text, 10>& values) {
    key_.clear();
    for (std::size_t k : kWords) (key_ += values[k]) += '"';
    nb::object& alike = words_[key_];
    if (!alike.is_valid()) {
      alike = nb::steal(PyTuple_New(kWords.size()));
      for (std::size_t k = 0; k < kWords.size(); ++k) {
        PyObject* word = PyUnicode_FromStringAndSize(values[kWords[k]].data(), values[kWords[k]].size());
        PyUnicode_InternInPlace(&word);
        PyTuple_SET_ITEM(alike.ptr(), k, word);
      }
    }
    return alike;
  }

  static constexpr std::array<std::size_t, 7> kWords = {1, 2, 3, 4, 5, 6, 9};
  const Text text_;
  const long ranks_, blocks_;
  long left_;  // thread blocks and steps
  std::size_t at_ = 0;
  long line_ = 1;
  std::string key_;
  std::unordered_map<std::string, nb::object> words_;
};

nb::object scan(nb::str text, long ranks, long blocks, long instructions) {
  if (!PyUnicode_IS_ASCII(text.ptr())) return nb::none();
  try {
    return Scanner(text.c_str(), ranks, blocks, instructions).read();
  } catch (Otherwise) {
    return nb::none();
  }
}

}  // namespace

void bind_scan(nb::module_& m) { m.def("scan_xml", &scan); }
