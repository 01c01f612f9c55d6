// HPACK (RFC 7541): request blocks in the styles of several client libraries, and what is needed of response blocks.
#pragma once
#include <array>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../native/huff.h"

namespace hpack {
using std::string;
typedef unsigned char u8;
constexpr unsigned TABLE_BYTES = 4096, ENTRY_BYTES = 32, DYNAMIC = 62;

static const char* STATIC_NAMES[DYNAMIC] = {"", ":authority", ":method", ":method", ":path", ":path", ":scheme", ":scheme", ":status", ":status",
  ":status", ":status", ":status", ":status", ":status", "accept-charset", "accept-encoding", "accept-language", "accept-ranges", "accept",
  "access-control-allow-origin", "age", "allow", "authorization", "cache-control", "content-disposition", "content-encoding", "content-language",
  "content-length", "content-location", "content-range", "content-type", "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match",
  "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified", "link", "location", "max-forwards", "proxy-authenticate",
  "proxy-authorization", "range", "referer", "refresh", "retry-after", "server", "set-cookie", "strict-transport-security", "transfer-encoding",
  "user-agent", "vary", "via", "www-authenticate"};
static const char* STATIC_STATUS[7] = {"200", "204", "206", "304", "400", "404", "500"};

inline void put_integer(string* s, unsigned v, int prefix_bits, int first) {
  unsigned m = (1u << prefix_bits) - 1;
  if (v < m) { s->push_back(char(first | v)); return; }
  s->push_back(char(first | m));
  for (v -= m; v >= 128; v >>= 7) s->push_back(char(v | 128));
  s->push_back(char(v));
}

// A text with its length before it, by the Huffman code where that is wanted and shorter.
inline void put_text(string* s, const char* p, size_t n, bool huffman) {
  if (huffman) {
    size_t bits = 0;
    for (size_t i = 0; i < n; i++) bits += HUFF[u8(p[i])].bits;
    size_t bytes = (bits + 7) / 8;
    if (bytes < n) {
      put_integer(s, unsigned(bytes), 7, 0x80);
      unsigned long have = 0;
      int count = 0;
      for (size_t i = 0; i < n; i++) {
        auto& code = HUFF[u8(p[i])];
        have = have << code.bits | code.code;
        for (count += code.bits; count >= 8;) s->push_back(char(have >> (count -= 8)));
      }
      if (count) s->push_back(char(have << (8 - count) | 0xff >> count));
      return;
    }
  }
  put_integer(s, unsigned(n), 7, 0);
  s->append(p, n);
}

// ---- requests

enum class Form {
  WHOLE,    // an entry of the static table
  INDEXED,  // from the table, or put into it
  SPELLED,  // the same, its name always in full
  LITERAL,  // in full, its name too unless the static table has it
  NAMED,    // its name from the table once it is there, its value in full
};
enum class Value { FIXED, PATH, TIMEOUT, DATE, REQUEST_ID, FRESH_TIMEOUT };

struct Field {
  string name, coded_name;
  Form form;
  Value value;
  unsigned number = 0;            // of the name (WHOLE: of the pair) in the static table, or 0
  std::vector<string> coded;      // values that are known before
  std::vector<size_t> sizes;      // of their entries
  std::vector<unsigned long> at;  // number of the newest entry with that value
  unsigned long name_at = 0;      // and with that name
};

// The table that a peer keeps of our blocks: entries are counted from 1, and only the newest ones are there.
struct Encoder {
  std::vector<Field> fields;
  unsigned long inserted = 0, dropped = 0;
  size_t used = 0, capacity = TABLE_BYTES;
  bool huffman = false, resized = false;
  std::array<unsigned short, 256> sizes{};

  void resize(unsigned peer) {
    if (peer >= TABLE_BYTES) return;
    capacity = peer;
    resized = true;
  }
  Field& add(const string& name, Form form, Value value, const std::vector<string>& values = {}, unsigned number = 0) {
    fields.push_back({name, "", form, value, number, {}, {}, {}, 0});
    Field& f = fields.back();
    put_text(&f.coded_name, name.data(), name.size(), huffman);
    for (auto& v : values) set(&f, f.coded.size(), v);
    return f;
  }
  void set(Field* f, size_t which, const string& value) {
    if (which >= f->coded.size()) f->coded.resize(which + 1), f->sizes.resize(which + 1), f->at.resize(which + 1);
    f->coded[which].clear();
    put_text(&f->coded[which], value.data(), value.size(), huffman);
    f->sizes[which] = f->name.size() + value.size() + ENTRY_BYTES;
    f->at[which] = 0;
  }
  void insert(size_t size) {
    sizes[inserted++ & 255] = (unsigned short)size;
    for (used += size; used > capacity; dropped++) used -= sizes[dropped & 255];
  }
  // `at`: where the entry of this very value is noted, null for a value that is new each time.
  void put(string* s, Field* f, const string& coded, size_t size, unsigned long* at) {
    if (at && *at > dropped && f->form != Form::LITERAL) { put_integer(s, unsigned(DYNAMIC + inserted - *at), 7, 0x80); return; }
    bool spelled = f->form == Form::SPELLED;
    unsigned name = spelled ? 0 : f->number;
    if (!name && !spelled && f->form != Form::LITERAL && f->name_at > dropped) name = unsigned(DYNAMIC + inserted - f->name_at);
    bool add = f->form == Form::INDEXED || spelled || (f->form == Form::NAMED && f->name_at <= dropped);
    if (add && size > capacity) add = false;
    put_integer(s, name, add ? 6 : 4, add ? 0x40 : 0);
    if (!name) *s += f->coded_name;
    *s += coded;
    if (!add) return;
    insert(size);
    f->name_at = inserted;
    if (at) *at = inserted;
  }
};

// ---- responses

struct Decoder {
  std::deque<std::pair<string, string>> table;
  size_t used = 0, capacity = TABLE_BYTES;
  struct Result { int status = 0, grpc = -1; string message; };
  std::unordered_map<string, Result> seen;  // blocks that change no table, while it stays as it is

  static bool huffman(const u8* p, size_t n, string* out) {
    static const std::vector<std::array<int, 2>> tree = [] {
      std::vector<std::array<int, 2>> t(1, {0, 0});
      for (int s = 0; s < 257; s++) {
        int at = 0;
        for (int b = HUFF[s].bits - 1; b >= 0; b--) {
          int bit = HUFF[s].code >> b & 1;
          if (b == 0) { t[at][bit] = -1 - s; break; }
          if (!t[at][bit]) { int made = int(t.size()); t[at][bit] = made; t.push_back({0, 0}); }
          at = t[at][bit];
        }
      }
      return t;
    }();
    int at = 0;
    for (size_t i = 0; i < n; i++)
      for (int b = 7; b >= 0; b--) {
        at = tree[at][p[i] >> b & 1];
        if (at < 0) { if (at == -257) return false; out->push_back(char(-1 - at)); at = 0; }
      }
    return true;
  }
  static bool integer(const u8*& p, const u8* e, int bits, unsigned* v) {
    if (p >= e) return false;
    unsigned m = (1u << bits) - 1;
    *v = *p++ & m;
    if (*v < m) return true;
    for (int sh = 0; p < e && sh < 28; sh += 7) { *v += (*p & 127u) << sh; if (!(*p++ & 128)) return true; }
    return false;
  }
  static bool text(const u8*& p, const u8* e, string* s) {
    if (p >= e) return false;
    bool coded = *p & 128, ok = true;
    unsigned n;
    if (!integer(p, e, 7, &n) || n > size_t(e - p)) return false;
    s->clear();
    if (coded) ok = huffman(p, n, s); else s->assign((const char*)p, n);
    p += n;
    return ok;
  }
  bool name(unsigned i, string* s) const {
    if (i < DYNAMIC) { *s = STATIC_NAMES[i]; return i > 0; }
    if (i - DYNAMIC >= table.size()) return false;
    *s = table[i - DYNAMIC].first;
    return true;
  }
  void trim() {
    while (used > capacity) { used -= table.back().first.size() + table.back().second.size() + ENTRY_BYTES; table.pop_back(); }
  }
  bool decode(const u8* p, size_t n, Result* r) {
    string block((const char*)p, n), k, v;
    auto hit = seen.find(block);
    if (hit != seen.end()) { *r = hit->second; return true; }
    const u8* e = p + n;
    bool changed = false;
    while (p < e) {
      unsigned i;
      u8 b = *p;
      if (b & 0x80) {
        if (!integer(p, e, 7, &i) || !name(i, &k)) return false;
        v = i >= DYNAMIC ? table[i - DYNAMIC].second : i >= 8 && i <= 14 ? STATIC_STATUS[i - 8] : "";
      } else if ((b & 0xe0) == 0x20) {
        if (!integer(p, e, 5, &i)) return false;
        capacity = i;
        trim();
        changed = true;
        continue;
      } else {
        bool add = b & 0x40;
        if (!integer(p, e, add ? 6 : 4, &i)) return false;
        if (!(i ? name(i, &k) : text(p, e, &k)) || !text(p, e, &v)) return false;
        if (add) { used += k.size() + v.size() + ENTRY_BYTES; table.emplace_front(k, v); trim(); changed = true; }
      }
      if (k == ":status") r->status = atoi(v.c_str());
      else if (k == "grpc-status") r->grpc = atoi(v.c_str());
      else if (k == "grpc-message") r->message = v;
    }
    if (changed) seen.clear();
    else if (seen.size() < 64) seen[block] = *r;
    return true;
  }
};
}  // namespace hpack
