// v2calls: a light load generator for apache.rocketmq.v2: HTTP/2 of its own, one thread, 1 to 2 us a call.
//   make        (Makefile beside it)
//
// send     SendMessage, so many calls at a time. A half (--kind transaction) is ended after its answer, by EndTransaction: both are one call
//          here, and one message.
// receive  Each connection is a consumer of its own: route, Telemetry with settings, a heartbeat, then ReceiveMessage with long
//          polls, and acknowledgements beside them. At the end it says goodbye, which gives its leases back.
// pull     PullMessage from the begin of each queue to its end. A connection reads its share of the queues one after another.
//
// Header blocks are in the style of a client library (--headers). All frames of an answer are parsed and checked: :status 200,
// grpc-status 0, the codes of the response and of every entry; of a receive status, messages and delivery timestamp, of a pull also
// that offsets follow each other. Everything goes to one address of the loopback, and ends after --count, or --secs.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include "../native/common.h"
#include "hpack.h"
#include "proto.h"
#if __has_include(<openssl/ssl.h>) && !defined(WITHOUT_TLS)
#include <openssl/ssl.h>
#define HAS_TLS 1
#else
#define HAS_TLS 0
#endif

using std::string;
using std::string_view;
typedef unsigned char u8;
static const char* USAGE =
    "v2calls --mode send|receive|pull --addr 127.0.0.1:PORT --topic T [--conns 1] [--secs 4] [--warm 1] [--count N] [--rate R]\n"
    "        [--headers own|python|java|go|nodejs] [--tls] [--pids 1,2]\n"
    "  send     [--streams 1 | --c TOTAL] [--batch 1] [--size 1024] [--body-random] [--tag TagA] [--keys 0] [--properties 0]\n"
    "           [--kind normal|fifo|delay|transaction|priority] [--digest none|crc32] [--traced SHARE]\n"
    "  receive  [--group G] [--queues 0,1] [--batch 32] [--ack one|batch] [--invisible-ms 60000] [--poll-ms 5000]\n"
    "  pull     [--group G] [--queues 0,1] [--batch 32] [--size BYTES]: each body has so many\n"
    "  --count: so many messages are sent; acknowledged; or are to be found in one pass. Without it for --secs, pulls again and again.\n"
    "  --rate: messages/s.   --tls: the certificate is not verified.\n"
    "  --kind: of 64 message groups; due in an hour; committed at once; of the priorities 0 to 3. One message a call.\n"
    "  --traced: each message has a trace context, and this share of them says that it is sampled.";

enum { DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONT };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8, PRIORITIZED = 32 };
constexpr long CONN_WINDOW = 64 << 20, STREAM_WINDOW = 4 << 20, FRAME_MAX = 256 << 10;
constexpr double RUN_S_MAX = 600, SILENCE_S_MAX = 60, GRACE_S = 0.3, OVERTIME_S_MAX = 60;
constexpr int GROUPS = 64, PRIORITIES = 4, AHEAD_S = 3600;
constexpr int BLOCKED_MS = 50;  // how long a read or a wait may take, so that time is looked at

static string mode = "v2calls";
[[noreturn]] static void die(const string& why) {
  string text;
  for (char ch : why) if (ch == '"' || ch == '\\') { text += '\\'; text += ch; } else text += u8(ch) < 32 ? ' ' : ch;
  printf("{\"mode\":\"%s\",\"failed\":\"%s\"}\n", mode.c_str(), text.c_str());
  fflush(stdout);
  _exit(1);
}
static unsigned rd32(const u8* p) { return unsigned(p[0]) << 24 | p[1] << 16 | p[2] << 8 | p[3]; }
static void be(string* s, unsigned long v, int n) { while (n--) s->push_back(char(v >> 8 * n)); }
static void head(string* s, size_t len, int type, int flags, unsigned stream) {
  char h[9] = {char(len >> 16), char(len >> 8), char(len), char(type), char(flags),
               char(stream >> 24), char(stream >> 16), char(stream >> 8), char(stream)};
  s->append(h, 9);
}
static unsigned long draw() {  // xorshift
  static unsigned long x = 0x9e3779b97f4a7c15ul ^ (unsigned long)wall_ms() ^ (unsigned long)getpid() << 40;
  x ^= x << 13; x ^= x >> 7; x ^= x << 17;
  return x;
}
static void put_hex(char* p, unsigned long v, int n, const char* digits = "0123456789ABCDEF") { while (n--) p[n] = digits[v & 15], v >>= 4; }

// ---- what is called

enum Method { SEND, END, RECEIVE, TAKE, PULL, ROUTE, OFFSET, TELEMETRY, HEARTBEAT, GOODBYE, METHODS };
static const char* NAMES[METHODS] = {"SendMessage", "EndTransaction", "ReceiveMessage", "AckMessage", "PullMessage", "QueryRoute", "QueryOffset",
  "Telemetry", "Heartbeat", "NotifyClientTermination"};
enum class Kind { NORMAL = 1, FIFO = 2, DELAY = 3, TRANSACTION = 4, PRIORITY = 6 };  // MessageType's numbers
static const std::map<string, Kind> KINDS = {{"normal", Kind::NORMAL}, {"fifo", Kind::FIFO}, {"delay", Kind::DELAY},
  {"transaction", Kind::TRANSACTION}, {"priority", Kind::PRIORITY}};

struct Conn;
struct Call {
  unsigned id = 0;
  Method method = SEND;
  double t = 0;
  long window = 65535, received = 0;  // sending window; bytes of ours that were used up
  size_t sent = 0;                    // of the request's data
  int status = 0, grpc = -1, want = 0, tag = 0;
  bool live = false, open = false;    // open: more requests may follow
  string answer, data;                // data: framed messages, patched in place
  string half;                        // what is sent again once its transaction has ended
  std::vector<size_t> ids, times, keys, bodies, contexts;
  size_t mark = 0;                    // of what makes a message one of its kind: group, time or priority
};
struct Queue {
  int id = 0;
  unsigned long begin = 0, end = 0, next = 0, pulled = 0;
};
struct Conn {
  int fd = -1;
#if HAS_TLS
  SSL* ssl = nullptr;
#endif
  std::vector<u8> in;
  size_t have = 0, out_at = 0;
  string out, client_id, authority;
  bool want_out = false, settled = false;
  long window = 65535, peer_initial = 65535, peer_frame = 16384, consumed = 0;
  unsigned next_id = 1, peer_streams = ~0u;
  size_t live = 0;
  hpack::Encoder encoder;
  hpack::Decoder decoder;
  unsigned long date_of = 0;
  string cont;
  int cont_flags = 0;
  std::deque<Call> calls;
  std::vector<Call*> spare, recent = std::vector<Call*>(4096);
  std::unordered_map<unsigned, Call*> older;  // streams that stay open while thousands come and go
  std::deque<Call*> blocked;
  // a consumer's
  size_t turn = 0, taking = 0;
  bool asked = false, told = false, receiving = false, ready = false, gone = false;
  Call* poll = nullptr;
  std::deque<string> acks;  // requests that wait for a stream
  // a puller's
  std::vector<Queue> queues;

  Call* find(unsigned id) {
    Call* c = recent[id / 2 & 4095];
    if (c && c->id == id) return c;
    auto it = older.find(id);
    return it == older.end() ? nullptr : it->second;
  }
  void note(Call* c) {
    Call*& slot = recent[c->id / 2 & 4095];
    if (slot) older[slot->id] = slot;
    slot = c;
  }
  void forget(Call* c) {
    Call*& slot = recent[c->id / 2 & 4095];
    if (slot == c) slot = nullptr; else older.erase(c->id);
  }
  Call* fresh() {
    if (spare.empty()) return &calls.emplace_back();
    Call* c = spare.back();
    spare.pop_back();
    return c;
  }
};

static string addr, topic, group, style;
static bool tls = false, body_random = false;
static int batch, size, key_count, property_count;
static Kind kind = Kind::NORMAL;
static bool digest = false;
static double traced = -1;  // share of contexts that are sampled; negative: none at all
static string tag;
static double now_cached;
static const unsigned pid = getpid();

// ---- header blocks

// Fields, their order, what goes into the table and what is Huffman-coded, as each library's first calls show it.
static void headers_of(Conn* c) {
  using namespace hpack;
  Encoder& e = c->encoder;
  std::vector<string> paths, timeouts;
  for (auto name : NAMES) paths.push_back(string("/apache.rocketmq.v2.MessagingService/") + name);
  const string& to = c->authority;
  auto post = [&] { e.add(":method", Form::WHOLE, Value::FIXED, {}, 3); };
  auto scheme = [&] { e.add(":scheme", Form::WHOLE, Value::FIXED, {}, tls ? 7 : 6); };
  auto fixed = [&](const string& name, const string& value, unsigned number = 0, Form form = Form::INDEXED) {
    e.add(name, form, Value::FIXED, {value}, number);
  };
  auto path = [&](Form form) { e.add(":path", form, Value::PATH, paths, 4); };
  // x-mq-*: the same for all but what changes and where the namespace stands.
  auto x_mq = [&](const string& language, const string& protocol, const string& version, Form form, bool with_namespace) {
    fixed("x-mq-language", language, 0, form);
    fixed("x-mq-protocol", protocol, 0, form);
    fixed("x-mq-client-version", version, 0, form);
    e.add("x-mq-date-time", form, Value::DATE, {""});
    e.add("x-mq-request-id", form, Value::REQUEST_ID);
    fixed("x-mq-client-id", c->client_id, 0, form);
    if (with_namespace) fixed("x-mq-namespace", "", 0, form);
  };
  // A timeout's values: of a long poll at the end.
  if (style == "python") {  // grpc's core: its own fields are in the table, metadata never
    path(Form::SPELLED);
    fixed(":authority", to, 0, Form::SPELLED);
    post();
    scheme();
    fixed("content-type", "application/grpc", 0, Form::SPELLED);
    fixed("te", "trailers", 0, Form::SPELLED);
    fixed("grpc-accept-encoding", "identity, deflate, gzip", 0, Form::SPELLED);
    e.add("grpc-timeout", Form::SPELLED, Value::TIMEOUT, {"3S", "3S", "3S", "3S", "23S"});
    fixed("user-agent", "grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)", 0, Form::SPELLED);
    x_mq("PYTHON", "GRPC_V2", "5.1.2", Form::LITERAL, true);
  } else if (style == "java") {  // grpc-java on Netty: everything into the table, no Huffman code
    fixed(":authority", to, 1);
    path(Form::INDEXED);
    post();
    scheme();
    fixed("content-type", "application/grpc", 31);
    fixed("te", "trailers");
    fixed("user-agent", "grpc-java-netty/1.50.0", 58);
    x_mq("JAVA", "v2", "5.0.7", Form::INDEXED, true);
    fixed("grpc-accept-encoding", "gzip");
    e.add("grpc-timeout", Form::INDEXED, Value::FRESH_TIMEOUT);
  } else if (style == "go") {  // grpc-go: everything into the table, Huffman code where shorter
    e.huffman = true;
    post();
    scheme();
    path(Form::INDEXED);
    fixed(":authority", to, 1);
    fixed("content-type", "application/grpc", 31);
    fixed("user-agent", "grpc-go/1.56.0", 58);
    fixed("te", "trailers");
    e.add("grpc-timeout", Form::INDEXED, Value::FRESH_TIMEOUT);
    x_mq("GO", "v2", "5.1.1", Form::INDEXED, true);
  } else if (style == "nodejs") {  // grpc-js on nghttp2: all but the path into the table, Huffman code where shorter
    e.huffman = true;
    fixed(":authority", to, 1);
    post();
    path(Form::LITERAL);
    scheme();
    x_mq("HTTP", "v2", "1.0.8", Form::INDEXED, false);
    e.add("grpc-timeout", Form::INDEXED, Value::TIMEOUT, {"3000m", "3000m", "2999m", "2998m", "23000m"});
    fixed("grpc-accept-encoding", "identity,deflate,gzip");
    fixed("accept-encoding", "identity", 16);
    fixed("user-agent", "grpc-node-js/1.9.0", 58);
    fixed("content-type", "application/grpc", 31);
    fixed("te", "trailers");
  } else if (style == "own") {  // our client library: what changes keeps its name in the table, and comes in full
    post();
    scheme();
    path(Form::INDEXED);
    fixed(":authority", to, 1);
    fixed("te", "trailers");
    fixed("content-type", "application/grpc", 31);
    fixed("user-agent", "v2calls/1", 58);
    e.add("grpc-timeout", Form::INDEXED, Value::TIMEOUT, {"3S", "3S", "3S", "3S", "23S"});
    x_mq("PYTHON", "v2", "5.0.0", Form::NAMED, true);
  } else die("no style of headers " + style);
}

static void put_headers(Conn* c, Call* s) {
  using namespace hpack;
  static string block, coded;
  static long long wall = 0;
  static double wall_at = -1;
  if (now_cached - wall_at > 0.0005) { wall = wall_ms(); wall_at = now_cached; }
  Encoder& e = c->encoder;
  block.clear();
  if (e.resized) { put_integer(&block, unsigned(e.capacity), 5, 0x20); e.resized = false; }
  for (Field& f : e.fields) {
    size_t which = 0;
    switch (f.value) {
      case Value::FIXED:
        if (f.form == Form::WHOLE) { block.push_back(char(0x80 | f.number)); continue; }
        break;
      case Value::PATH:
        which = s->method;
        break;
      case Value::TIMEOUT:
        if (s->method == TELEMETRY) continue;
        which = s->method == RECEIVE || s->method == PULL ? 4 : draw() & 3;
        if (which && f.coded[which] == f.coded[0]) which = 0;
        break;
      case Value::DATE:
        if (c->date_of != (unsigned long)(wall / 1000)) {
          c->date_of = wall / 1000;
          char text[32];
          time_t seconds = c->date_of;
          tm parts;
          gmtime_r(&seconds, &parts);
          strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
          e.set(&f, 0, text);
        }
        break;
      case Value::REQUEST_ID: {
        char id[36];
        unsigned long high = draw(), low = draw();
        static const char* digits = "0123456789abcdef";
        put_hex(id, high >> 32, 8, digits); id[8] = '-';
        put_hex(id + 9, high >> 16, 4, digits); id[13] = '-';
        put_hex(id + 14, (high & 0xfff) | 0x4000, 4, digits); id[18] = '-';
        put_hex(id + 19, (low >> 48 & 0x3fff) | 0x8000, 4, digits); id[23] = '-';
        put_hex(id + 24, low, 12, digits);
        coded.clear();
        put_text(&coded, id, 36, e.huffman);
        e.put(&block, &f, coded, f.name.size() + 36 + ENTRY_BYTES, nullptr);
        continue;
      }
      case Value::FRESH_TIMEOUT: {  // microseconds that are left
        if (s->method == TELEMETRY) continue;
        char text[16];
        int n = snprintf(text, sizeof text, "%luu", (s->method == RECEIVE || s->method == PULL ? 23000000 : 3000000) - 1 - (draw() & 511));
        coded.clear();
        put_text(&coded, text, n, e.huffman);
        e.put(&block, &f, coded, f.name.size() + n + ENTRY_BYTES, nullptr);
        continue;
      }
    }
    e.put(&block, &f, f.coded[which], f.sizes[which], &f.at[which]);
  }
  head(&c->out, block.size(), HEADERS, END_HEADERS, s->id);
  c->out += block;
}

// ---- requests

static unsigned crc32(string_view s) {
  unsigned c = ~0u;
  for (u8 b : s) {
    c ^= b;
    for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xedb88320 : c >> 1;
  }
  return ~c;
}
static string send_request(Call* s, const string& body) {
  string all, checksum;
  if (digest) {
    string hex(8, '0');
    put_hex(&hex[0], crc32(body), 8);
    proto::number(&checksum, 1, 1);
    proto::field(&checksum, 2, hex);
  }
  const string id(38, '0'), key(16, '\1'), digits(12, '\2');
  for (int i = 0; i < batch; i++) {
    string m, sys, ts;
    proto::varint(&ts, 1 << 3); proto::varint(&ts, 1700000000); proto::varint(&ts, 2 << 3); ts += string("\x80\x80\x80\x80\x00", 5);
    if (!tag.empty()) proto::field(&sys, 1, tag);
    for (int k = 0; k < key_count; k++) proto::field(&sys, 2, "key-" + string(1, char('a' + k % 26)) + key.substr(0, 3) + digits);
    proto::field(&sys, 3, id);
    if (digest) proto::field(&sys, 4, checksum);
    proto::number(&sys, 5, 1);
    proto::number(&sys, 6, (unsigned long)kind);
    proto::field(&sys, 7, ts);
    proto::field(&sys, 8, "127.0.0.1");
    size_t mark = 0, context = 0;  // in sys
    if (kind == Kind::DELAY) { proto::field(&sys, 11, ts); mark = sys.size() - ts.size() + 1; }
    if (kind == Kind::FIFO) { proto::field(&sys, 17, "group-00"); mark = sys.size() - 2; }
    if (traced >= 0) { proto::field(&sys, 18, "00-" + string(32, '0') + "-" + string(16, '0') + "-00"); context = sys.size() - 55; }
    if (kind == Kind::PRIORITY) { proto::number(&sys, 22, 0); mark = sys.size() - 1; }
    proto::field(&m, 1, proto::resource(topic));
    for (int k = 0; k < property_count; k++) {
      string pair;
      proto::field(&pair, 1, "property-" + std::to_string(k));
      proto::field(&pair, 2, "the value of property " + std::to_string(k));
      proto::field(&m, 2, pair);
    }
    proto::field(&m, 3, sys);
    const size_t sys_at = m.size() - sys.size();
    proto::field(&m, 4, body);
    size_t before = all.size();
    proto::field(&all, 1, m);
    const size_t sys_begin = 5 + all.size() - m.size() + sys_at;
    s->mark = sys_begin + mark;
    if (traced >= 0) s->contexts.push_back(sys_begin + context);
    s->ids.push_back(5 + all.find(id, before));
    s->times.push_back(5 + all.find(ts, before) + 1);
    for (size_t at = before, k = 0; k < size_t(key_count); k++) s->keys.push_back(5 + (at = all.find(digits, at))), at += 12;
    s->bodies.push_back(5 + all.size() - body.size());
  }
  for (size_t at : s->keys) memcpy(&all[at - 5 - 3], "000", 3);
  return proto::framed(all);
}
static string commit_request(string_view id, string_view transaction) {
  string r;
  proto::field(&r, 1, proto::resource(topic));
  proto::field(&r, 2, id);
  proto::field(&r, 3, transaction);
  proto::number(&r, 4, 1);  // commit
  proto::number(&r, 5, 1);  // by the client
  return proto::framed(r);
}
static void put_time(char* p, unsigned long sec, unsigned long nanos) {
  for (int k = 0; k < 5; k++) p[k] = char((sec >> 7 * k & 127) | (k < 4 ? 128 : 0));
  for (int k = 0; k < 5; k++) p[6 + k] = char((nanos >> 7 * k & 127) | (k < 4 ? 128 : 0));
}
static void stamp(Call* s) {
  static long long ms = 0;
  static double at = -1;
  static unsigned long seq = 0;
  if (now_cached - at > 0.0005) { ms = wall_ms(); at = now_cached; }
  // Patched in place, so it always takes five bytes; with leading zeros no library writes it.
  unsigned long sec = ms / 1000, nanos = std::max(ms % 1000 * 1000000, 1ll << 28);
  for (size_t i = 0; i < s->ids.size(); i++) {
    char* p = &s->data[s->ids[i]];
    seq++;
    memcpy(p, "0102420A0B0C0D", 14);
    put_hex(p + 14, pid & 0xffff, 4);
    put_hex(p + 18, sec - 1609459200, 8);
    put_hex(p + 26, seq, 12);
    put_time(&s->data[s->times[i]], sec, nanos);
    for (int k = 0; k < key_count; k++) put_hex(&s->data[s->keys[i * key_count + k]], seq, 12);
    if (body_random) {
      char* b = &s->data[s->bodies[i]];
      int k = 0;
      for (; k + 8 <= size; k += 8) { unsigned long v = draw(); memcpy(b + k, &v, 8); }
      for (; k < size; k++) b[k] = char(draw());
    }
  }
  for (size_t at : s->contexts) {
    static const char* digits = "0123456789abcdef";
    char* p = &s->data[at];
    put_hex(p + 3, draw(), 16, digits);
    put_hex(p + 19, draw(), 16, digits);
    put_hex(p + 36, draw(), 16, digits);
    p[54] = double(draw() >> 11) * 0x1p-53 < traced ? '1' : '0';
  }
  char* mark = &s->data[s->mark];
  if (kind == Kind::FIFO) mark[0] = char('0' + seq % GROUPS / 10), mark[1] = char('0' + seq % GROUPS % 10);
  else if (kind == Kind::DELAY) put_time(mark, sec + AHEAD_S, nanos);
  else if (kind == Kind::PRIORITY) *mark = char(seq % PRIORITIES);
}

// ---- bytes

static bool send_data(Conn* c, Call* s) {  // false: a window is closed
  while (s->sent < s->data.size()) {
    long n = std::min({long(s->data.size() - s->sent), c->peer_frame, s->window, c->window});
    if (n <= 0) return false;
    bool last = s->sent + n == s->data.size() && !s->open;
    head(&c->out, n, DATA, last ? END_STREAM : 0, s->id);
    c->out.append(s->data, s->sent, n);
    s->sent += n;
    s->window -= n;
    c->window -= n;
  }
  return true;
}
static void unblock(Conn* c) {
  for (size_t n = c->blocked.size(); n && c->window > 0; n--) {
    Call* s = c->blocked.front();
    c->blocked.pop_front();
    if (s->live && !send_data(c, s)) c->blocked.push_back(s);
  }
}
static long inflight = 0, ended_calls = 0;
static void go(Conn* c, Call* s, Method method) {
  if (c->next_id >= 0x7ffffff0) die("stream numbers used up");
  s->id = c->next_id;
  c->next_id += 2;
  s->method = method;
  s->window = c->peer_initial;
  s->sent = s->received = 0;
  s->status = 0;
  s->grpc = -1;
  s->answer.clear();
  s->live = true;
  s->open = method == TELEMETRY;
  c->note(s);
  c->live++;
  s->t = now_cached;
  put_headers(c, s);
  if (!send_data(c, s)) c->blocked.push_back(s);
  if (method != TELEMETRY) inflight++;
}
static void ask(Conn* c, Method method, const string& request, int tag = 0, int want = 0) {
  Call* s = c->fresh();
  s->data = proto::framed(request);
  s->tag = tag;
  s->want = want;
  go(c, s, method);
}
static long put_out(Conn* c, const char* p, size_t n) {  // bytes taken; 0: later
#if HAS_TLS
  if (c->ssl) {
    int done = SSL_write(c->ssl, p, int(std::min(n, size_t(1) << 20)));
    if (done > 0) return done;
    int why = SSL_get_error(c->ssl, done);
    if (why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ) return 0;
    die("TLS: can't write");
  }
#endif
  ssize_t done = send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (done >= 0) return done;
  if (errno == EAGAIN || errno == EINTR) return 0;
  die(string("send: ") + strerror(errno));
}
static void flush(Conn* c, int ep) {
  while (c->out_at < c->out.size()) {
    long n = put_out(c, c->out.data() + c->out_at, c->out.size() - c->out_at);
    if (!n) break;
    c->out_at += n;
  }
  bool want = c->out_at < c->out.size();
  if (!want) c->out.clear(), c->out_at = 0;
  if (want != c->want_out) {
    epoll_event e{};
    e.events = EPOLLIN | (want ? unsigned(EPOLLOUT) : 0u);
    e.data.ptr = c;
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
  }
  c->want_out = want;
}
static long take_in(Conn* c, bool block) {  // bytes; 0: none now
  u8* p = c->in.data() + c->have;
  size_t room = c->in.size() - c->have;
#if HAS_TLS
  if (c->ssl) {
    int n = SSL_read(c->ssl, p, int(room));
    if (n > 0) return n;
    int why = SSL_get_error(c->ssl, n);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return 0;
    die("closed by the peer");
  }
#endif
  ssize_t n = recv(c->fd, p, room, block ? 0 : MSG_DONTWAIT);
  if (n > 0) return n;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  die(n ? string("recv: ") + strerror(errno) : "closed by the peer");
}

static void open_connection(Conn* c, int ep) {
  sockaddr_in sa{};
  size_t colon = addr.rfind(':');
  string host = addr.substr(0, colon);
  if (host == "localhost") host = "127.0.0.1";
  sa.sin_family = AF_INET;
  sa.sin_port = htons(colon == string::npos ? 0 : atoi(addr.c_str() + colon + 1));
  if (colon == string::npos || inet_pton(AF_INET, host.c_str(), &sa.sin_addr) != 1 || (ntohl(sa.sin_addr.s_addr) >> 24) != 127)
    die("--addr is to be an address of the loopback with its port, not " + addr);
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int one = 1;
  if (connect(c->fd, (sockaddr*)&sa, sizeof sa)) die(string("connect: ") + strerror(errno));
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  timeval patience{10, 0};
  setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
#if HAS_TLS
  if (tls) {
    static SSL_CTX* context = [] {
      SSL_CTX* x = SSL_CTX_new(TLS_client_method());
      static const u8 h2[] = {2, 'h', '2'};
      if (!x || SSL_CTX_set_alpn_protos(x, h2, sizeof h2)) die("TLS: no context");
      SSL_CTX_set_verify(x, SSL_VERIFY_NONE, nullptr);
      SSL_CTX_set_read_ahead(x, 1);
      SSL_CTX_set_default_read_buffer_len(x, 128 << 10);
      SSL_CTX_set_mode(x, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
      return x;
    }();
    c->ssl = SSL_new(context);
    SSL_set_fd(c->ssl, c->fd);
    if (SSL_connect(c->ssl) != 1) die("TLS: no handshake");
    const u8* chosen = nullptr;
    unsigned length = 0;
    SSL_get0_alpn_selected(c->ssl, &chosen, &length);
    if (string((const char*)chosen, length) != "h2") die("TLS: the peer does not take h2");
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK)) die("TLS: the socket stays blocking");
  }
#endif
  timeval short_while{0, BLOCKED_MS * 1000};
  setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &short_while, sizeof short_while);
  c->in.resize(FRAME_MAX + (256 << 10));
  c->out = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  head(&c->out, 18, SETTINGS, 0, 0);
  be(&c->out, 2, 2); be(&c->out, 0, 4);              // no push
  be(&c->out, 4, 2); be(&c->out, STREAM_WINDOW, 4);  // window of a stream
  be(&c->out, 5, 2); be(&c->out, FRAME_MAX, 4);      // largest frame: our buffer must hold it
  head(&c->out, 4, WINDOW, 0, 0);
  be(&c->out, CONN_WINDOW - 65535, 4);
  c->authority = addr;
  headers_of(c);
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.ptr = c;
  epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}

static double percentile(std::vector<float>& all, double q) {
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  return all[std::min(all.size() - 1, size_t(double(all.size()) * q))];
}

// Switches may stand without a value.
static std::vector<char*> with_values(int argc, char** argv) {
  static char yes[] = "1";
  std::vector<char*> all;
  for (int i = 0; i < argc; i++) {
    all.push_back(argv[i]);
    if ((!strcmp(argv[i], "--tls") || !strcmp(argv[i], "--body-random")) && (i + 1 == argc || !strncmp(argv[i + 1], "--", 2)))
      all.push_back(yes);
  }
  return all;
}

int main(int argc, char** argv) {
  std::vector<char*> words = with_values(argc, argv);
  Args a(int(words.size()), words.data(), USAGE);
  mode = a.s("mode", "send");
  addr = a.s("addr");
  topic = a.s("topic");
  bool sends = mode == "send", receives = mode == "receive", pulls = mode == "pull";
  string ack = a.s("ack", "one");
  if (addr.empty() || topic.empty() || !(sends || receives || pulls) || (ack != "one" && ack != "batch")) {
    fprintf(stderr, "%s\n", USAGE);
    return 2;
  }
  style = a.s("headers", "own");
  group = a.s("group", "v2calls");
  tls = a.n("tls", 0);
  if (tls && !HAS_TLS) die("built without TLS: install libssl-dev and build again");
  int conns = a.n("conns", 1), streams = a.n("streams", 0), total = a.n("c", 0);
  batch = a.n("batch", sends ? 1 : 32);
  size = a.n("size", a.n("body", 1024));
  body_random = a.n("body-random", 0);
  key_count = a.n("keys", 0);
  property_count = a.n("properties", 0);
  tag = a.s("tag", "TagA");
  const string kind_name = a.s("kind", "normal"), digest_name = a.s("digest", "none");
  if (!KINDS.count(kind_name)) die("no kind of messages " + kind_name);
  kind = KINDS.at(kind_name);
  digest = digest_name == "crc32";
  traced = a.d("traced", -1);
  if (!digest && digest_name != "none") die("no digest " + digest_name);
  if (digest && body_random) die("a digest is that of one body: without --body-random");
  if (kind != Kind::NORMAL && batch > 1 && sends) die("only messages without a kind come in batches");
  const bool check_size = !a.s("size").empty(), ack_each = ack == "one";
  long count = a.n("count", 0), poll_ms = a.n("poll-ms", 5000), invisible_ms = a.n("invisible-ms", 60000);
  double rate = a.d("rate", 0);
  if (conns < 1 || conns > 4096 || batch < 1 || batch > 1024 || size < 1 || size > 4 << 20 || count < 0) die("an argument is out of bounds");
  if (!streams) streams = total ? std::max(1, (total + conns - 1) / conns) : 1;
  if (!sends && streams != 1) die("a connection has one receive or pull at a time: --streams 1");
  double secs = std::min(a.d("secs", count ? RUN_S_MAX : 4), RUN_S_MAX), warm = count ? 0 : a.d("warm", 1);
  std::vector<int> queue_ids;
  for (string list = a.s("queues"); !list.empty();) {
    queue_ids.push_back(atoi(list.c_str()));
    size_t comma = list.find(',');
    list = comma == string::npos ? "" : list.substr(comma + 1);
  }
  const bool queues_given = !queue_ids.empty();

  Meter m(a.s("pids"));
  int ep = epoll_create1(EPOLL_CLOEXEC);
  now_cached = now_s();
  string body(size, 'x');
  for (auto& ch : body) ch = char(draw());
  std::deque<Conn> all(conns);
  int number = 0;
  for (auto& c : all) {
    c.client_id = "load@" + std::to_string(pid) + "@" + (receives ? std::to_string(number++) : "0") + "@" + std::to_string(wall_ms());
    open_connection(&c, ep);
    if (sends)
      for (int i = 0; i < streams; i++) {
        c.calls.emplace_back();
        c.calls.back().data = send_request(&c.calls.back(), body);
      }
    flush(&c, ep);
  }
  now_cached = now_s();
  double start = now_cached + warm, end = start + secs, heard_at = now_cached, begun_at = now_cached;
  bool prepared = sends, stopping = false, finished = false;
  long issued = 0, acknowledged = 0, redelivered = 0, empty = 0, pulled = 0, expected = 0, passes = 0, left = 0, said_bye = 0;
  std::vector<float> ack_ms;
  std::vector<string> receive_requests;
  std::function<void(Conn*)> receive_next, pull_next, take_next;

  std::deque<std::function<void()>> idle;  // with a rate: calls that wait for their time
  auto paced = [&](std::function<void()> run) { if (rate > 0) idle.push_back(std::move(run)); else run(); };
  auto more = [&] { return !stopping && now_cached < end; };
  auto error = [&](const string& why) {
    if (m.open()) m.errors[why]++;
    else if (!m.begun && !m.errors["before: " + why]++) fprintf(stderr, "%s\n", why.c_str());
  };
  auto counted = [&](long n, double bytes) { if (m.open()) m.n += n, m.bytes += bytes; };

  // Preparing: everybody is known, has its queues, and begins at one time.
  auto begin = [&] {
    prepared = true;
    begun_at = now_cached;
    start = now_cached + warm;
    end = start + secs;
    if (count) m.begin();
  };
  if (sends && count) m.begin();
  auto consumers_ready = [&] {
    for (auto& c : all) if (!c.ready) return;
    begin();
    for (int id : queue_ids) {
      string r;
      proto::field(&r, 1, proto::resource(group));
      proto::field(&r, 2, proto::queue(topic, id));
      proto::field(&r, 3, proto::any_tag());
      proto::number(&r, 4, batch);
      proto::field(&r, 5, proto::duration(invisible_ms));
      proto::field(&r, 7, proto::duration(poll_ms));
      receive_requests.push_back(proto::framed(r));
    }
    for (size_t i = 0; i < all.size(); i++) {
      all[i].turn = i;
      receive_next(&all[i]);
      flush(&all[i], ep);
    }
  };
  auto heartbeat = [&](Conn* c) {
    if (!c->asked || !c->told) return;
    string r;
    proto::field(&r, 1, proto::resource(group));
    proto::number(&r, 2, 3);
    ask(c, HEARTBEAT, r);
  };
  auto route = [&](Conn* c) {
    string r, endpoints, address;
    size_t colon = addr.rfind(':');
    proto::field(&r, 1, proto::resource(topic));
    proto::field(&address, 1, addr.substr(0, colon));
    proto::number(&address, 2, atoi(addr.c_str() + colon + 1));
    proto::number(&endpoints, 1, 1);
    proto::field(&endpoints, 2, address);
    proto::field(&r, 2, endpoints);
    ask(c, ROUTE, r);
  };
  auto telemetry = [&](Conn* c) {
    string command, settings, subscription, entry, agent;
    proto::field(&entry, 1, proto::resource(topic));
    proto::field(&entry, 2, proto::any_tag());
    proto::field(&subscription, 1, proto::resource(group));
    proto::field(&subscription, 2, entry);
    proto::number(&subscription, 4, batch);
    proto::field(&subscription, 5, proto::duration(poll_ms));
    proto::number(&agent, 1, 2);
    proto::field(&agent, 2, "5.0.0");
    proto::number(&settings, 1, 3);  // a simple consumer
    proto::field(&settings, 6, subscription);
    proto::field(&settings, 7, agent);
    proto::field(&command, 2, settings);
    ask(c, TELEMETRY, command);
  };
  auto share_queues = [&] {  // pulls: every connection asks for the ends of its queues
    if (size_t(conns) > queue_ids.size()) die(std::to_string(conns) + " connections for " + std::to_string(queue_ids.size()) + " queues");
    for (size_t i = 0; i < queue_ids.size(); i++) { all[i % conns].queues.emplace_back(); all[i % conns].queues.back().id = queue_ids[i]; }
    for (auto& c : all)
      for (auto& q : c.queues)
        for (int policy = 0; policy < 2; policy++) {
          string r;
          proto::field(&r, 1, proto::queue(topic, q.id));
          proto::number(&r, 2, policy);
          left++;
          ask(&c, OFFSET, r, int(&q - &c.queues[0]), policy);
          flush(&c, ep);
        }
  };
  auto routed = [&](Conn* c, string_view answer) {
    std::vector<int> found;
    proto::Reader r(answer);
    while (r.next()) {
      if (r.tag != 2) continue;
      proto::Reader queue(r.bytes);
      int id = 0, permission = 0;
      while (queue.next()) { if (queue.tag == 2) id = int(queue.value); else if (queue.tag == 3) permission = int(queue.value); }
      if (permission == 2 || permission == 4) found.push_back(id);
    }
    if (r.broken || found.empty()) die("the route has no queue that can be read");
    if (!queues_given) queue_ids = found;
    c->asked = true;
    if (receives) heartbeat(c); else share_queues();
  };
  // Called once the peer's settings are there.
  auto settled = [&](Conn* c) {
    if (c->peer_streams < unsigned(streams)) die("the peer allows " + std::to_string(c->peer_streams) + " streams");
    if (sends) {
      for (auto& s : c->calls)
        if (more() && (!count || issued < count)) {
          issued += rate > 0 ? 0 : batch;
          paced([&, c, call = &s] { if (rate > 0) issued += batch; stamp(call); go(c, call, SEND); });
        }
    } else if (receives) {
      route(c);
      telemetry(c);
    } else {
      for (auto& other : all) if (!other.settled) return;
      if (queues_given) share_queues(); else route(&all[0]);
      flush(&all[0], ep);
    }
  };

  // Receiving
  auto leave = [&](Conn* c) {
    if (c->gone || !c->acks.empty() || c->taking) return;
    if (c->poll) {
      head(&c->out, 4, RST, 0, c->poll->id);
      be(&c->out, 8, 4);
      c->poll->live = false;
      c->forget(c->poll);
      c->live--;
      inflight--;
      c->poll = nullptr;
    }
    c->gone = true;
    string r;
    proto::field(&r, 1, proto::resource(group));
    ask(c, GOODBYE, r);
    flush(c, ep);
  };
  receive_next = [&](Conn* c) {
    if (!more() || c->poll || c->receiving || c->taking + c->acks.size() >= 2 * size_t(batch)) return;
    c->receiving = true;
    paced([&, c] {
      c->receiving = false;
      if (!more()) return;
      Call* s = c->fresh();
      s->data = receive_requests[c->turn++ % receive_requests.size()];
      c->poll = s;
      go(c, s, RECEIVE);
    });
  };
  take_next = [&](Conn* c) {
    while (!c->acks.empty() && c->live + 2 < c->peer_streams) {
      Call* s = c->fresh();
      s->data = std::move(c->acks.front());
      s->want = ack_each ? 1 : 0;
      c->acks.pop_front();
      c->taking++;
      go(c, s, TAKE);
    }
  };
  auto received = [&](Conn* c, Call* s, string_view answer) {
    c->poll = nullptr;
    string_view one;
    long code = 0, messages = 0;
    double bytes = 0;
    bool whole = true, stamped = false;
    string entries, head_part;
    proto::field(&head_part, 1, proto::resource(group));
    proto::field(&head_part, 2, proto::resource(topic));
    while (proto::cut(&answer, &one)) {
      proto::Reader r(one);
      if (!r.next() || stamped) { whole = false; break; }
      if (r.tag == 1) { whole = whole && !code; code = proto::status_code(r.bytes); }
      else if (r.tag == 3) stamped = true;
      else {
        proto::Received got;
        if (r.tag != 2 || !proto::received(r.bytes, &got) || got.handle.empty() || got.id.empty() || !code) { whole = false; break; }
        messages++;
        bytes += double(got.body);
        if (got.attempt > 1) redelivered++;
        string entry;
        proto::field(&entry, 1, got.id);
        proto::field(&entry, 2, got.handle);
        if (ack_each) {
          string r = head_part;
          proto::field(&r, 3, entry);
          c->acks.push_back(proto::framed(r));
        } else proto::field(&entries, 3, entry);
      }
    }
    if (!whole || !answer.empty() || !stamped) error("receive: not as agreed");
    else if (code != (messages ? proto::OK : proto::NO_MESSAGE)) error("receive: status " + std::to_string(code));
    if (messages && !ack_each) c->acks.push_back(proto::framed(head_part + entries));
    if (messages && m.open()) { m.lat.push_back(float((now_cached - s->t) * 1e3)); m.bytes += bytes; }
    if (!messages) empty++;
    take_next(c);
    receive_next(c);
  };
  auto taken = [&](Conn* c, Call* s, string_view message) {
    c->taking--;
    proto::Outcome o = proto::outcome(message, 3);
    if (o.code != proto::OK || o.ok != o.entries || (s->want && o.entries != s->want) || !o.entries)
      error("ack: status " + std::to_string(o.bad ? o.bad : o.code));
    acknowledged += o.ok;
    counted(o.ok, 0);
    if (m.open()) ack_ms.push_back(float((now_cached - s->t) * 1e3));
    if (count && acknowledged >= count && !stopping) { stopping = true; m.end(); }
    take_next(c);
    receive_next(c);
  };

  // Pulling
  pull_next = [&](Conn* c) {
    if (!more()) return;
    while (c->turn < c->queues.size() && c->queues[c->turn].next >= c->queues[c->turn].end) c->turn++;
    if (c->turn >= c->queues.size()) {
      if (count) return;
      passes++;
      c->turn = 0;
      for (auto& q : c->queues) { if (q.begin >= q.end) continue; q.next = q.begin; }
      while (c->turn < c->queues.size() && c->queues[c->turn].next >= c->queues[c->turn].end) c->turn++;
      if (c->turn >= c->queues.size()) return;
    }
    paced([&, c] {
      if (!more()) return;
      Queue& q = c->queues[c->turn];
      string r;
      proto::field(&r, 1, proto::resource(group));
      proto::field(&r, 2, proto::queue(topic, q.id));
      proto::number(&r, 3, q.next);
      proto::number(&r, 4, batch);
      proto::field(&r, 5, proto::any_tag());
      proto::field(&r, 6, proto::duration(1000));
      ask(c, PULL, r, int(c->turn));
    });
  };
  auto pulled_some = [&](Conn* c, Call* s, string_view answer) {
    Queue& q = c->queues[s->tag];
    string_view one;
    long code = 0, messages = 0;
    double bytes = 0;
    unsigned long next = 0;
    bool whole = true;
    while (proto::cut(&answer, &one)) {
      proto::Reader r(one);
      if (!r.next() || next) { whole = false; break; }
      if (r.tag == 1) code = proto::status_code(r.bytes);
      else if (r.tag == 3) next = r.value;
      else {
        proto::Received got;
        if (!proto::received(r.bytes, &got) || got.offset != q.next + messages || (check_size && got.body != size_t(size))) whole = false;
        messages++;
        bytes += double(got.body);
      }
    }
    if (!whole || !answer.empty() || next != q.next + messages || !messages) {
      error("pull: not as agreed");
      if (code != proto::OK || next <= q.next) die("pull: status " + std::to_string(code) + ", next offset " + std::to_string(next));
    }
    q.next = next;
    q.pulled += messages;
    pulled += messages;
    counted(messages, bytes);
    if (m.open()) m.lat.push_back(float((now_cached - s->t) * 1e3));
    pull_next(c);
  };

  // Sending: a call has ended, well if `why` is empty.
  auto sent = [&](Conn* c, Call* s, const string& why) {
    if (why.empty()) {
      counted(batch, double(batch) * size);
      if (m.open()) m.lat.push_back(float((now_cached - s->t) * 1e3));
    } else error(why);
    if (!more() || (count && issued >= count)) return;
    if (rate > 0) paced([&, c, s] { issued += batch; stamp(s); go(c, s, SEND); });
    else { issued += batch; stamp(s); go(c, s, SEND); }
  };
  auto commit = [&](Conn* c, Call* s, string_view answer) {  // false: the answer to a half names no transaction
    string_view id, transaction;
    if (!proto::half(answer, &id, &transaction)) return false;
    s->half = std::move(s->data);
    s->data = commit_request(id, transaction);
    double since = s->t;
    go(c, s, END);
    s->t = since;
    return true;
  };

  auto finish = [&](Conn* c, Call* s, const string& transport) {
    s->live = false;
    c->forget(s);
    c->live--;
    if (s->method == TELEMETRY) {
      if (!c->gone) die("the Telemetry stream ended: " + transport);
      return;
    }
    inflight--;
    if (m.open()) ended_calls++;
    string why = transport;
    string_view rest = s->answer, message;
    bool unary = s->method != RECEIVE && s->method != PULL;
    if (why.empty() && unary && (!proto::cut(&rest, &message) || !rest.empty())) why = "no whole message";
    if (why.empty() && s->sent < s->data.size()) why = "answered before all was sent";
    switch (s->method) {
      case SEND: {
        if (why.empty()) {
          proto::Outcome o = proto::outcome(message, 1);
          if (o.code != proto::OK) why = "status " + std::to_string(o.code);
          else if (o.bad) why = "status " + std::to_string(o.bad);
          else if (o.entries != batch && o.entries != 1) why = "status -3";
        }
        if (why.empty() && kind == Kind::TRANSACTION) {
          if (commit(c, s, message)) return;
          why = "no transaction";
        }
        sent(c, s, why);
        return;
      }
      case END: {
        long code = why.empty() ? proto::outcome(message, 1).code : 0;
        s->data = std::move(s->half);
        sent(c, s, !why.empty() || code == proto::OK ? why : "end: status " + std::to_string(code));
        return;
      }
      case RECEIVE:
        if (why.empty()) received(c, s, s->answer);
        else { c->poll = nullptr; error("receive: " + why); receive_next(c); }
        break;
      case TAKE:
        if (why.empty()) taken(c, s, message);
        else { c->taking--; error("ack: " + why); take_next(c); receive_next(c); }
        break;
      case PULL:
        if (!why.empty()) die("pull: " + why);
        pulled_some(c, s, s->answer);
        break;
      default: {
        long code = why.empty() ? proto::outcome(message, 1).code : 0;
        if (code != proto::OK) die(string(NAMES[s->method]) + ": " + (why.empty() ? "status " + std::to_string(code) : why));
        if (s->method == ROUTE) routed(c, message);
        else if (s->method == HEARTBEAT) { c->ready = true; consumers_ready(); }
        else if (s->method == GOODBYE) said_bye++;
        else if (s->method == OFFSET) {
          unsigned long offset = 0;
          proto::Reader r(message);
          while (r.next()) if (r.tag == 2) offset = r.value;
          Queue& q = c->queues[s->tag];
          if (s->want) q.end = offset; else q.begin = q.next = offset;
          if (!--left) {
            for (auto& one : all) for (auto& each : one.queues) expected += long(each.end - each.begin);
            if (!expected) die("the queues are empty");
            begin();
            for (auto& one : all) { pull_next(&one); flush(&one, ep); }
          }
        }
      }
    }
    c->spare.push_back(s);
  };
  auto ended = [&](Conn* c, Call* s) {
    string why;
    if (s->status != 200) why = "http " + std::to_string(s->status);
    else if (s->grpc != 0) why = "grpc " + std::to_string(s->grpc);
    finish(c, s, why);
  };
  auto frame = [&](Conn* c, int type, int flags, unsigned id, const u8* p, size_t n) {
    Call* s = id ? c->find(id) : nullptr;
    switch (type) {
      case DATA: {
        c->consumed += long(n);
        if (c->consumed >= CONN_WINDOW / 2) { head(&c->out, 4, WINDOW, 0, 0); be(&c->out, c->consumed, 4); c->consumed = 0; }
        if (!s) return;
        s->received += long(n);
        if (s->received >= STREAM_WINDOW / 2 && !(flags & END_STREAM)) { head(&c->out, 4, WINDOW, 0, id); be(&c->out, s->received, 4); s->received = 0; }
        size_t pad = 0;
        if (flags & PADDED) { if (!n) die("padding"); pad = *p++; n--; if (pad > n) die("padding"); }
        s->answer.append((const char*)p, n - pad);
        if (s->method == TELEMETRY) {
          string_view rest = s->answer, one;
          while (proto::cut(&rest, &one)) {
            proto::Reader r(one);
            bool settings = false;
            while (r.next()) {
              if (r.tag == 1 && proto::status_code(r.bytes) != proto::OK) die("Telemetry: status " + std::to_string(proto::status_code(r.bytes)));
              settings = settings || r.tag == 2;
            }
            if (settings && !c->told) { c->told = true; heartbeat(c); }
          }
          s->answer = string(rest);
        }
        if (flags & END_STREAM) ended(c, s);
        return;
      }
      case HEADERS: case CONT: {
        if (type == HEADERS) {
          size_t pad = 0;
          if (flags & PADDED) { if (!n) die("padding"); pad = *p++; n--; }
          if (flags & PRIORITIZED) { if (n < 5) die("priority"); p += 5; n -= 5; }
          if (pad > n) die("padding");
          n -= pad;
          if (!(flags & END_HEADERS)) { c->cont.assign((const char*)p, n); c->cont_flags = flags; return; }
        } else {
          c->cont.append((const char*)p, n);
          if (!(flags & END_HEADERS)) return;
          p = (const u8*)c->cont.data();
          n = c->cont.size();
          flags = c->cont_flags;
        }
        hpack::Decoder::Result r;
        if (!c->decoder.decode(p, n, &r)) die("header block");
        if (!s) return;
        if (r.status) s->status = r.status;
        if (r.grpc >= 0) {
          s->grpc = r.grpc;
          static int said = 0;
          if (r.grpc && said++ < 3) fprintf(stderr, "grpc-status %d %s\n", r.grpc, r.message.c_str());
        }
        if (flags & END_STREAM) ended(c, s);
        return;
      }
      case RST:
        // NO_ERROR behind a whole answer is no error; the stream is gone from the table then
        if (s) finish(c, s, "reset " + std::to_string(n >= 4 ? rd32(p) : 0));
        return;
      case SETTINGS:
        if (flags & ACK) return;
        for (size_t i = 0; i + 6 <= n; i += 6) {
          unsigned k = p[i] << 8 | p[i + 1], v = rd32(p + i + 2);
          if (k == 1) c->encoder.resize(v);
          else if (k == 3) c->peer_streams = v;
          else if (k == 5) c->peer_frame = v;
          else if (k == 4) {
            long d = long(v) - c->peer_initial;
            c->peer_initial = v;
            for (auto& x : c->calls) if (x.live) x.window += d;
          }
        }
        head(&c->out, 0, SETTINGS, ACK, 0);
        if (!c->settled) { c->settled = true; settled(c); }
        unblock(c);
        return;
      case PING:
        if (!(flags & ACK)) { head(&c->out, 8, PING, ACK, 0); c->out.append((const char*)p, n); }
        return;
      case GOAWAY:
        die("GOAWAY " + std::to_string(n >= 8 ? rd32(p + 4) : 0) + " " + string((const char*)p + 8, n > 8 ? n - 8 : 0));
      case WINDOW:
        if (n < 4) die("window");
        if (!id) c->window += rd32(p);
        else if (s) s->window += rd32(p);
        if (!c->blocked.empty()) unblock(c);
        return;
    }
  };
  const bool blocking = conns == 1 && rate <= 0 && !tls;
  auto readable = [&](Conn* c, bool block) {
    bool again;
    do {
      again = false;
      long n = take_in(c, block);
      now_cached = now_s();
      if (!n) break;
      heard_at = now_cached;
      c->have += size_t(n);
      size_t at = 0;
      while (c->have - at >= 9) {
        const u8* p = c->in.data() + at;
        size_t len = p[0] << 16 | p[1] << 8 | p[2];
        if (len > size_t(FRAME_MAX)) die("a frame too long");
        if (c->have - at < 9 + len) break;
        frame(c, p[3], p[4], rd32(p + 5) & 0x7fffffff, p + 9, len);
        at += 9 + len;
      }
      if (at) memmove(c->in.data(), c->in.data() + at, c->have - at), c->have -= at;
#if HAS_TLS
      again = c->ssl && SSL_has_pending(c->ssl);
#endif
    } while (again);
    if (!c->out.empty()) flush(c, ep);
  };

  long allowed = 0;
  auto all_settled = [&] { for (auto& c : all) if (!c.settled) return false; return true; };
  while (!finished) {
    if (prepared && !m.begun && now_cached >= start) m.begin();
    if (m.begun && !m.ended && now_cached >= end) m.end();
    if (now_cached - heard_at > SILENCE_S_MAX) die("nothing came from the peer for a minute");
    if (now_cached > end + OVERTIME_S_MAX) die("calls did not end in time");
    if (prepared && now_cached >= end) stopping = true;
    if (sends) finished = !inflight && all_settled() && (rate <= 0 || !more() || (count && issued >= count));
    else if (pulls) finished = prepared && !inflight && (stopping || (count && idle.empty()));
    else if (stopping) {
      if (count && acknowledged >= count ? true : now_cached >= end + GRACE_S) for (auto& c : all) leave(&c);
      finished = said_bye == conns;
    }
    if (finished) break;
    if (rate > 0 && prepared) {
      long due = long((now_cached - begun_at) * rate) / batch;
      while (allowed < due && !idle.empty() && more() && (!sends || !count || issued < count)) {
        auto run = std::move(idle.front());
        idle.pop_front();
        run();
        allowed++;
      }
      if (allowed < due) allowed = due;
      for (auto& c : all) if (!c.out.empty()) flush(&c, ep);
    }
    if (blocking && !all[0].want_out) {
      readable(&all[0], true);  // no epoll needed for one socket
      continue;
    }
    epoll_event ev[64];
    double wait = BLOCKED_MS * 1e-3;
    if (rate > 0 && prepared && !idle.empty()) wait = std::min(wait, std::max(0.0, begun_at + double(allowed + 1) * batch / rate - now_cached));
    timespec until{0, long(wait * 1e9)};
    int n = epoll_pwait2(ep, ev, 64, &until, nullptr);
    now_cached = now_s();
    for (int i = 0; i < n; i++) {
      Conn* c = (Conn*)ev[i].data.ptr;
      if (ev[i].events & EPOLLOUT) flush(c, ep);
      if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(c, false);
    }
  }
  m.end();
  if (sends && count && issued < count) m.errors["not sent"] = count - issued;
  if (receives && count && acknowledged < count) m.errors["not received"] = count - acknowledged;
  if (pulls && count && (pulled != count || expected != count)) m.errors["not pulled"] = std::max(std::labs(count - pulled), std::labs(expected - count));
  m.add_extra("c", double(conns) * streams);
  m.add_extra("conns", conns);
  m.add_extra("batch", batch);
  m.add_extra("body", size);
  m.add_extra("tls", tls);
  m.extra += ",\"headers\":\"" + style + "\"";
  if (sends) {
    m.extra += ",\"kind\":\"" + kind_name + "\",\"digest\":\"" + digest_name + "\"";
    if (traced >= 0) m.add_extra("traced", traced);
  }
  m.add_extra("client_us_per_call", ended_calls ? (m.c1 - m.c0) * 1e6 / double(ended_calls) : 0);
  if (receives) {
    m.add_extra("acks", double(ack_ms.size()));
    m.add_extra("empty", double(empty));
    m.add_extra("redelivered", double(redelivered));
    m.add_extra("ack_p50", percentile(ack_ms, .5));
    m.add_extra("ack_p99", percentile(ack_ms, .99));
  }
  m.print(mode.c_str());
  return 0;
}
