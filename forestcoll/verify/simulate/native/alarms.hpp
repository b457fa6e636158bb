// When the next flow of each bundle ends, the earliest first; that changes with the rates.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace forestcoll::simulate {

// A binary heap in which every bundle knows its place (Cormen et al., Introduction to Algorithms,
// section 6.5). Rates change far more often than flows end, by hundreds at a time: a queue to which
// each change adds an event would hold almost only events that are out of date.
class Alarms {
 public:
  struct Alarm {
    double time;
    std::uint64_t number;  // of two at one time the smaller goes first
    std::int32_t bundle;
    bool operator<(const Alarm& other) const {
      return time != other.time ? time < other.time : number < other.number;
    }
  };

  bool empty() const { return heap_.empty(); }
  const Alarm& first() const { return heap_.front(); }

  // Sets the bundle's alarm, or moves it.
  void set(double time, std::uint64_t number, std::int32_t bundle) {
    if (static_cast<std::size_t>(bundle) >= place_.size()) place_.resize(bundle + 1, kNowhere);
    std::int32_t at = place_[bundle];
    const Alarm alarm{time, number, bundle};
    if (at == kNowhere) {
      at = static_cast<std::int32_t>(heap_.size());
      heap_.push_back(alarm);
    }
    const bool sooner = at > 0 && alarm < heap_[(at - 1) / 2];
    sooner ? rise(at, alarm) : sink(at, alarm);
  }

  void pop() {  // there has to be one
    place_[heap_.front().bundle] = kNowhere;
    const Alarm last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(0, last);
  }

 private:
  static constexpr std::int32_t kNowhere = -1;

  void put(std::int32_t at, const Alarm& alarm) {
    heap_[at] = alarm;
    place_[alarm.bundle] = at;
  }

  void rise(std::int32_t at, const Alarm& alarm) {
    while (at > 0 && alarm < heap_[(at - 1) / 2]) {
      put(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    put(at, alarm);
  }

  void sink(std::int32_t at, const Alarm& alarm) {
    const auto size = static_cast<std::int32_t>(heap_.size());
    while (2 * at + 1 < size) {
      std::int32_t child = 2 * at + 1;
      if (child + 1 < size && heap_[child + 1] < heap_[child]) ++child;
      if (!(heap_[child] < alarm)) break;
      put(at, heap_[child]);
      at = child;
    }
    put(at, alarm);
  }

  std::vector<Alarm> heap_;
  std::vector<std::int32_t> place_;  // of each bundle in the heap
};

}  // namespace forestcoll::simulate
