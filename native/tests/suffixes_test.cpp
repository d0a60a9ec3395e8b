// Suffix automata against a search of the whole text: every length they find is the longest there is, and every place is one.
#include "suffixes.h"

#include <algorithm>

#include "check.h"

namespace pagoda::test {
namespace {

using Tokens = std::vector<int32_t>;

// Whether a text's run of `size` tokens before `place` is that of another's before `end`.
bool same_run(const Tokens& text, int place, const Tokens& other, int end, int size) {
  return size <= place && size <= end && std::equal(text.begin() + place - size, text.begin() + place, other.begin() + end - size);
}

// The longest run before `end` of another text that occurs in a text, somewhere before `until`.
int longest(const Tokens& text, int until, const Tokens& other, int end) {
  int best = 0;
  for (int place = 1; place < until; place++)
    while (same_run(text, place, other, end, best + 1)) best++;
  return best;
}

Tokens random_tokens(Random& random, int most) {
  Tokens tokens(size_t(random.below(most)));
  const int kinds = random.between(1, 5);
  for (auto& t : tokens) t = random.below(kinds) + (random.below(20) ? 0 : 7);
  return tokens;
}

TEST("suffixes", the_longest_end_that_occurred_before) {
  Random random(1);
  for (int round = 0; round < 300; round++) {
    const Tokens tokens = random_tokens(random, 60);
    Text text;
    for (int end = 1; end <= int(tokens.size()); end++) {
      text.extend(tokens[size_t(end) - 1]);
      text.check();
      const auto match = text.suffix();
      CHECK(match.size == longest(tokens, end, tokens, end));
      CHECK(!match.size || (match.place < end && same_run(tokens, match.place, tokens, end, match.size)));
    }
    CHECK(text.tokens() == tokens);
  }
}

TEST("suffixes", a_cursor_follows_another_text_while_the_text_grows) {
  Random random(2);
  for (int round = 0; round < 300; round++) {
    const Tokens tokens = random_tokens(random, 80), other = random_tokens(random, 60);
    Text text;
    Text::Cursor cursor;
    for (int end = 1; end <= int(other.size()); end++) {
      cursor = text.follow(cursor, other[size_t(end) - 1]);
      const Tokens known = text.tokens();
      CHECK(cursor.size == longest(known, int(known.size()) + 1, other, end));
      if (text.tokens().size() < tokens.size()) text.extend(tokens[text.tokens().size()]);
      text.check();
      CHECK(!cursor.size || same_run(text.tokens(), text.after(cursor), other, end, cursor.size));
    }
  }
}

TEST("suffixes", a_line_takes_the_longest_match_of_its_own_and_others) {
  const auto recent = std::make_shared<Text>();
  for (const int32_t t : {5, 6, 7, 8, Line::kBreak, 6, 7, 9}) recent->extend(t);
  Line line({recent});
  for (const int32_t t : {6, 7, 4, 4, 5, 6, 7}) line.extend(t);
  CHECK(line.match() == 3 && line.next() == 8);
  CHECK((line.continuation(9) == Tokens{8}));  // and not into the next output
  CHECK(line.continuation(0).empty());
  for (const int32_t t : {4, 4, 5}) line.extend(t);
  CHECK(line.match() == 5);  // its own: 6 7 4 4 5
  CHECK((line.continuation(6) == Tokens{6, 7, 4, 4, 5, 6}));  // which goes round
  line.check();
}

// A prompt made to have one state with ever more edges: time and memory stay in proportion to the text.
TEST("suffixes", a_long_text_takes_little_memory) {
  Text spread, same;
  for (int i = 0; i < 30'000; i++) {
    spread.extend(0);
    spread.extend(i + 1);
    same.extend(0);
    same.extend(0);
  }
  CHECK(spread.bytes() < 60'000 * 250);
  CHECK(same.bytes() < 60'000 * 250);
  CHECK(spread.suffix().size == 0 && same.suffix().size == 59'999);
}

}  // namespace
}  // namespace pagoda::test
