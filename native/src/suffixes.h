// Where in a text its own end, or another text's, occurred before. Knows token ids only.
//
// A suffix automaton (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text") is built online, in constant
// amortised time for each token, with at most two states and three edges for each. A state stands for runs of tokens that occur at
// the same places. All edges are in one hash table; those of a state are linked as well, to be copied when it is split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace pagoda {

class Text {
 public:
  // Another text's end, as it occurs in this one: the state of its longest run, and how long that is.
  struct Cursor {
    int32_t state = 0, size = 0;
  };
  // How long a run is, and where it then went on.
  struct Match {
    int32_t size = 0, place = 0;
  };

  Text();
  // The text goes on with this token.
  void extend(int32_t token);
  // The longest end of the text that occurred before; of several places one of the latest.
  Match suffix() const;
  // The cursor after one token more of the other text.
  Cursor follow(Cursor cursor, int32_t token) const;
  // Where the text went on after a cursor's run.
  int32_t after(Cursor cursor) const { return states_[size_t(settle(cursor).state)].after; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  size_t bytes() const;
  // Throws if links do not lead to shorter runs, or a run is not where its state says.
  void check() const;

 private:
  struct State {
    int32_t link;    // of the longest run that also ends elsewhere
    int32_t length;  // of its longest run
    int32_t after;   // where the text went on after one of its runs
    int32_t edges;   // the first of its edges
  };
  struct Edge {
    int32_t from, token, to, next;
  };

  int32_t state(int32_t link, int32_t length, int32_t after);
  int32_t split(int32_t at, int32_t token, int32_t known);
  // A cursor from before the text grew: states may have been split since.
  Cursor settle(Cursor cursor) const;
  // The place in the table of an edge, or where it would be.
  size_t slot(int32_t from, int32_t token) const;
  // Where an edge leads; -1 if there is none.
  int32_t to(int32_t from, int32_t token) const;
  void connect(int32_t from, int32_t token, int32_t to);

  std::vector<int32_t> tokens_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> table_;  // of edges, open addressing; -1: free
  int32_t last_ = 0;
};

// A text of its own that is followed token by token, and where its end occurs in it or in others.
class Line {
 public:
  explicit Line(std::vector<std::shared_ptr<const Text>> others);
  void extend(int32_t token);
  size_t size() const { return own_.tokens().size(); }
  // How long an end of it occurred before.
  int32_t match() const { return match_.size; }
  // The token that went on after that; only if there is a match.
  int32_t next() const { return text_->tokens()[size_t(match_.place)]; }
  // Up to `most` tokens that went on after that. Where its own end is reached they begin again: a run goes round.
  std::vector<int32_t> continuation(int most) const;
  void check() const { own_.check(); }
  // No token, but the end of one of several outputs that make up another text: nothing goes on past it.
  static constexpr int32_t kBreak = -1;

 private:
  Text own_;
  std::vector<std::pair<std::shared_ptr<const Text>, Text::Cursor>> others_;
  Text::Match match_;
  const Text* text_ = nullptr;  // in which the match is
};

}  // namespace pagoda
