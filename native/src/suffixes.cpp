#include "suffixes.h"

#include <algorithm>

#include "require.h"

namespace pagoda {
namespace {

constexpr int32_t kNone = -1;
constexpr size_t kFirstTable = 64;

// The finalizer of SplitMix64 (Steele, Lea & Flood 2014): nobody picks tokens that meet.
size_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return size_t(x ^ x >> 31);
}

}  // namespace

Text::Text() : table_(kFirstTable, kNone) { state(kNone, 0, 0); }

int32_t Text::state(int32_t link, int32_t length, int32_t after) {
  states_.push_back({link, length, after, kNone});
  return int32_t(states_.size()) - 1;
}

size_t Text::slot(int32_t from, int32_t token) const {
  const size_t mask = table_.size() - 1;
  for (size_t at = mixed(uint64_t(uint32_t(from)) << 32 | uint32_t(token)) & mask;; at = (at + 1) & mask) {
    if (table_[at] == kNone) return at;
    const Edge& edge = edges_[size_t(table_[at])];
    if (edge.from == from && edge.token == token) return at;
  }
}

int32_t Text::to(int32_t from, int32_t token) const {
  const int32_t edge = table_[slot(from, token)];
  return edge == kNone ? kNone : edges_[size_t(edge)].to;
}

void Text::connect(int32_t from, int32_t token, int32_t to) {
  if (2 * edges_.size() >= table_.size()) {
    table_.assign(2 * table_.size(), kNone);
    for (size_t e = 0; e < edges_.size(); e++) table_[slot(edges_[e].from, edges_[e].token)] = int32_t(e);
  }
  State& state = states_[size_t(from)];
  table_[slot(from, token)] = int32_t(edges_.size());
  edges_.push_back({from, token, to, state.edges});
  state.edges = int32_t(edges_.size()) - 1;
}

void Text::extend(int32_t token) {
  const int32_t met = states_[size_t(last_)].link;
  if (met > 0) states_[size_t(met)].after = int32_t(tokens_.size());  // of its places the latest is likeliest to be met again
  tokens_.push_back(token);
  const int32_t added = state(0, states_[size_t(last_)].length + 1, int32_t(tokens_.size()));
  int32_t at = last_, known = kNone;
  for (; at != kNone && (known = to(at, token)) == kNone; at = states_[size_t(at)].link) connect(at, token, added);
  if (at != kNone) {
    if (states_[size_t(known)].length != states_[size_t(at)].length + 1) known = split(at, token, known);
    states_[size_t(added)].link = known;
  }
  last_ = added;
}

// Part the shorter runs of a state from its longer ones: they have just occurred once more.
int32_t Text::split(int32_t at, int32_t token, int32_t known) {
  const State old = states_[size_t(known)];
  const int32_t clone = state(old.link, states_[size_t(at)].length + 1, old.after);
  for (int32_t e = old.edges; e != kNone; e = edges_[size_t(e)].next) {
    const Edge edge = edges_[size_t(e)];  // connecting moves them
    connect(clone, edge.token, edge.to);
  }
  states_[size_t(known)].link = clone;
  for (; at != kNone; at = states_[size_t(at)].link) {
    const int32_t edge = table_[slot(at, token)];
    if (edge == kNone || edges_[size_t(edge)].to != known) break;
    edges_[size_t(edge)].to = clone;
  }
  return clone;
}

Text::Match Text::suffix() const {
  const int32_t link = states_[size_t(last_)].link;
  return link > 0 ? Match{states_[size_t(link)].length, states_[size_t(link)].after} : Match{};
}

Text::Cursor Text::settle(Cursor cursor) const {
  while (cursor.state > 0) {
    const int32_t link = states_[size_t(cursor.state)].link;
    if (cursor.size > states_[size_t(link)].length) break;
    cursor.state = link;
  }
  return cursor;
}

Text::Cursor Text::follow(Cursor cursor, int32_t token) const {
  cursor = settle(cursor);
  int32_t next;
  while ((next = to(cursor.state, token)) == kNone && cursor.state > 0) {
    cursor.state = states_[size_t(cursor.state)].link;
    cursor.size = states_[size_t(cursor.state)].length;
  }
  return next == kNone ? Cursor{} : Cursor{next, cursor.size + 1};
}

size_t Text::bytes() const {
  return sizeof(*this) + tokens_.capacity() * sizeof(int32_t) + states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
         table_.capacity() * sizeof(int32_t);
}

void Text::check() const {
  const size_t n = tokens_.size();
  require(states_.size() <= std::max<size_t>(2 * n, 2), "more states than a text can have");
  require(edges_.size() <= std::max<size_t>(3 * n, 1) && 2 * edges_.size() <= table_.size() + 1, "more edges than a text can have");
  for (size_t s = 1; s < states_.size(); s++) {
    const State& state = states_[s];
    require(state.link >= 0 && states_[size_t(state.link)].length < state.length, "a link leads to no shorter run");
    require(state.length <= state.after && size_t(state.after) <= n, "a run lies outside of the text");
    int32_t at = 0;
    for (int32_t i = state.after - state.length; i < state.after && at != kNone; i++) at = to(at, tokens_[size_t(i)]);
    require(size_t(at) == s, "a state is not where its run leads");
  }
}

Line::Line(std::vector<std::shared_ptr<const Text>> others) {
  for (auto& other : others) others_.emplace_back(std::move(other), Text::Cursor{});
}

void Line::extend(int32_t token) {
  own_.extend(token);
  match_ = own_.suffix();
  text_ = &own_;
  for (auto& [text, cursor] : others_) {
    cursor = text->follow(cursor, token);
    if (cursor.size <= match_.size) continue;
    const int32_t place = text->after(cursor);
    if (size_t(place) >= text->tokens().size()) continue;  // it ends there
    match_ = {cursor.size, place};
    text_ = text.get();
  }
}

std::vector<int32_t> Line::continuation(int most) const {
  std::vector<int32_t> found;
  if (!match_.size) return found;
  const auto& tokens = text_->tokens();
  const size_t first = size_t(match_.place), size = tokens.size() - first;
  for (size_t i = 0; found.size() < size_t(most); i++) {
    if (i == size && text_ != &own_) break;
    const int32_t token = tokens[first + i % size];
    if (token == kBreak) break;
    found.push_back(token);
  }
  return found;
}

}  // namespace pagoda
