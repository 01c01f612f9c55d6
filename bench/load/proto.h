// The fields of apache.rocketmq.v2 that the load generator writes and reads.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace proto {
using std::string;
using std::string_view;
typedef unsigned char u8;
constexpr long OK = 20000, NO_MESSAGE = 40401, BROKEN = -1;

inline void varint(string* s, unsigned long v) { for (; v >= 128; v >>= 7) s->push_back(char(v | 128)); s->push_back(char(v)); }
inline void number(string* s, int n, unsigned long v) { varint(s, n << 3); varint(s, v); }
inline void field(string* s, int n, string_view v) { varint(s, n << 3 | 2); varint(s, v.size()); s->append(v); }
inline string resource(string_view name) { string s; field(&s, 2, name); return s; }
inline string duration(long ms) { string s; number(&s, 1, ms / 1000); number(&s, 2, ms % 1000 * 1000000); return s; }
inline string queue(string_view topic, int id) { string s; field(&s, 1, resource(topic)); number(&s, 2, id); return s; }
inline string any_tag() { string s; number(&s, 1, 1); field(&s, 2, "*"); return s; }

// Goes over the fields of a message. `broken`: they are not whole.
struct Reader {
  const u8 *p, *e;
  bool broken = false;
  int tag = 0;
  unsigned long value = 0;  // of a number
  string_view bytes;        // of anything with a length

  explicit Reader(string_view s) : p((const u8*)s.data()), e(p + s.size()) {}
  bool varint(unsigned long* v) {
    *v = 0;
    for (int sh = 0; p < e && sh < 64; sh += 7) { *v |= (*p & 127ul) << sh; if (!(*p++ & 128)) return true; }
    return false;
  }
  bool next() {
    unsigned long t, n;
    if (p >= e) return false;
    bytes = {};
    if (!varint(&t)) return fail();
    tag = int(t >> 3);
    switch (t & 7) {
      case 0: return varint(&value) || fail();
      case 2:
        if (!varint(&n) || n > size_t(e - p)) return fail();
        bytes = string_view((const char*)p, n);
        p += n;
        return true;
      case 1: case 5:
        n = (t & 7) == 1 ? 8 : 4;
        if (size_t(e - p) < n) return fail();
        p += n;
        return true;
    }
    return fail();
  }
  bool fail() { broken = true; return false; }
};

inline long status_code(string_view s) {
  Reader r(s);
  long code = 0;
  while (r.next()) if (r.tag == 1) code = long(r.value);
  return r.broken ? BROKEN : code;
}

// What a response says: its own status, how many entries are OK, and the first code of another one.
struct Outcome {
  long code = 0, bad = 0;
  int entries = 0, ok = 0;
  unsigned long offset = 0;
};
// `status`: number of the field of an entry that has its status.
inline Outcome outcome(string_view s, int status) {
  Outcome o;
  Reader r(s);
  while (r.next()) {
    if (r.tag == 1) o.code = status_code(r.bytes);
    else if (r.tag == 2 && r.bytes.data()) {
      Reader entry(r.bytes);
      long code = 0;
      while (entry.next()) if (entry.tag == status) code = status_code(entry.bytes);
      if (entry.broken) code = BROKEN;
      o.entries++;
      if (code == OK) o.ok++; else if (!o.bad) o.bad = code ? code : BROKEN;
    }
  }
  if (r.broken) o.code = BROKEN;
  return o;
}

// What a transaction's end names, by the answer to its half; false: it is not there.
inline bool half(string_view s, string_view* id, string_view* transaction) {
  Reader r(s);
  while (r.next()) {
    if (r.tag != 2) continue;
    Reader entry(r.bytes);
    while (entry.next()) {
      if (entry.tag == 2) *id = entry.bytes;
      else if (entry.tag == 3) *transaction = entry.bytes;
    }
    if (entry.broken) return false;
  }
  return !r.broken && !id->empty() && !transaction->empty();
}

struct Received {
  string_view id, handle;
  size_t body = 0;
  unsigned long offset = 0, attempt = 0;
};
inline bool received(string_view s, Received* m) {
  Reader r(s);
  *m = Received();
  while (r.next()) {
    if (r.tag == 4) m->body = r.bytes.size();
    else if (r.tag == 3) {
      Reader system(r.bytes);
      while (system.next()) {
        if (system.tag == 3) m->id = system.bytes;
        else if (system.tag == 12) m->handle = system.bytes;
        else if (system.tag == 14) m->offset = system.value;
        else if (system.tag == 16) m->attempt = system.value;
      }
      if (system.broken) return false;
    }
  }
  return !r.broken;
}

// Cuts the next message of a gRPC stream off; false: there is no whole one.
inline bool cut(string_view* s, string_view* message) {
  if (s->size() < 5 || (*s)[0]) return false;
  auto p = (const u8*)s->data();
  size_t n = size_t(p[1]) << 24 | p[2] << 16 | p[3] << 8 | p[4];
  if (s->size() < 5 + n) return false;
  *message = s->substr(5, n);
  s->remove_prefix(5 + n);
  return true;
}
inline string framed(string_view s) {
  string d(1, 0);
  for (int i = 3; i >= 0; i--) d.push_back(char(s.size() >> 8 * i));
  d.append(s);
  return d;
}
}  // namespace proto
