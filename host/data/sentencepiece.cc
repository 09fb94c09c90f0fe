// The C face of the SentencePiece library, and encoding by parts.
//
// The library takes a text whole: about 200 bytes of memory per character, and time that grows
// faster than the text once that leaves the caches. BPE merges neighbours into pieces of the
// vocabulary, so where the characters on both sides of a place stand next to each other in no
// piece, no merge ever crosses it, and the parts on both sides can be encoded on their own with the
// same result. That holds for BPE models without normalization rules; with other models a text is
// encoded whole.
//
// To the library the character that it writes for a space, U+2581, is a space. Where a model has
// pieces for bytes and changes nothing else in a text, the character is spelled by its three bytes,
// so that decoding gives it back. At the beginning of a text, where the library itself puts one, it
// stays the library's.
#include "data/sentencepiece.h"

#include "data/charsmap.h"

#include <sentencepiece_processor.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

constexpr int64_t kPart = 4096;       // bytes after which a place to cut is looked for
constexpr int64_t kLongest = 8 << 20; // of a text that cannot be cut
constexpr uint32_t kSpace = 0x2581;   // what the library writes for a space
constexpr char kSpaceText[] = "\xe2\x96\x81";

// What the model file says about itself, read from its protobuf encoding
// (sentencepiece_model.proto).
struct Settings {
  bool bpe = false;
  bool space_is_suffix = false;
  bool byte_fallback = false;
  bool has_rules = false;
  bool removes_spaces = true;
  bool escapes_spaces = true;
  const char *problem = nullptr; // why the library must not see the model
};

struct Wire {
  const unsigned char *at, *end;

  bool varint(uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && at < end; shift += 7) {
      unsigned char byte = *at++;
      *value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  // The next field: its number, and its value or its bytes. Whatever the library might take for
  // something else, such as groups, is refused: tags have 32 bits.
  bool field(uint64_t *number, uint64_t *value, Wire *inner) {
    uint64_t tag, length;
    if (!varint(&tag) || tag > UINT32_MAX) return false;
    *number = tag >> 3;
    *value = 0;
    *inner = Wire{at, at};
    switch (tag & 7) {
    case 0:
      return varint(value);
    case 1:
      length = 8;
      break;
    case 5:
      length = 4;
      break;
    case 2:
      if (!varint(&length)) return false;
      break;
    default:
      return false;
    }
    if (length > static_cast<uint64_t>(end - at)) return false;
    if ((tag & 7) == 2) *inner = Wire{at, at + length};
    at += length;
    return true;
  }
};

bool read_trainer(Wire wire, Settings *settings) {
  uint64_t number, value;
  Wire inner;
  while (wire.at < wire.end) {
    if (!wire.field(&number, &value, &inner)) return false;
    if (number == 3) settings->bpe = value == 2;
    if (number == 24) settings->space_is_suffix = value != 0;
    if (number == 35) settings->byte_fallback = value != 0;
  }
  return true;
}

bool read_normalizer(Wire wire, Settings *settings) {
  uint64_t number, value;
  Wire inner;
  while (wire.at < wire.end) {
    if (!wire.field(&number, &value, &inner)) return false;
    if (number == 2) {
      auto size = static_cast<size_t>(inner.end - inner.at);
      const char *problem = pk_charsmap_problem(reinterpret_cast<const char *>(inner.at), size);
      settings->has_rules = size > 0;
      if (problem) settings->problem = problem;
    }
    if (number == 4) settings->removes_spaces = value != 0;
    if (number == 5) settings->escapes_spaces = value != 0;
  }
  return true;
}

// Field 3 is the normalizer, 5 the one of decoded text.
Settings read_settings(const char *model, int64_t bytes) {
  Settings settings, decoding;
  auto begin = reinterpret_cast<const unsigned char *>(model);
  Wire wire{begin, begin + bytes}, inner;
  uint64_t number, value;
  bool good = true;
  while (wire.at < wire.end && good) {
    good = wire.field(&number, &value, &inner);
    if (good && number == 2) good = read_trainer(inner, &settings);
    if (good && number == 3) good = read_normalizer(inner, &settings);
    if (good && number == 5) good = read_normalizer(inner, &decoding);
  }
  if (!settings.problem) settings.problem = decoding.problem;
  if (!good) settings.problem = "it is not encoded as one";
  return settings;
}

// The code point at text, with a space as the library writes it. Text is promised to be
// UTF-8; other bytes give some number, without reading past the end.
uint32_t character(const char *text, const char *end, int *length) {
  auto t = reinterpret_cast<const unsigned char *>(text);
  *length = 1;
  if (t[0] < 0x80) return t[0] == ' ' ? kSpace : t[0];
  int wanted = t[0] < 0xe0 ? 2 : t[0] < 0xf0 ? 3 : 4;
  if (wanted > end - text) return t[0];
  *length = wanted;
  uint32_t point = t[0] & (0xff >> (wanted + 1));
  for (int i = 1; i < wanted; i++) point = point << 6 | (t[i] & 63);
  return point;
}

bool is_utf8(const std::string &text) {
  for (size_t i = 0; i < text.size();) {
    auto lead = static_cast<unsigned char>(text[i]);
    size_t length = lead < 0x80 ? 1 : lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (length == 0 || i + length > text.size()) return false;
    for (size_t k = 1; k < length; k++) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

// A copy in malloc's memory, which C frees.
char *copy(const std::string &text) {
  auto result = static_cast<char *>(std::malloc(text.size() + 1));
  if (result) std::memcpy(result, text.c_str(), text.size() + 1);
  return result;
}

} // namespace

struct pk_spm {
  sentencepiece::SentencePieceProcessor whole; // the model as it is
  sentencepiece::SentencePieceProcessor rest;  // without the space that is put before a text
  bool by_parts = false;
  bool byte_fallback = false;
  std::vector<int> space_bytes; // the pieces that spell U+2581; empty: it becomes a space
  std::unordered_set<uint64_t> neighbours; // pairs of characters inside a piece
  std::unordered_set<uint32_t> known;      // characters that are a piece

  // Whether a text may be cut between two characters. Unknown ones in a row become one id, so they
  // stay together.
  bool may_cut(uint32_t before, uint32_t after) const {
    if (neighbours.count(static_cast<uint64_t>(before) << 32 | after)) return false;
    return byte_fallback || known.count(before) || known.count(after);
  }

  // The end of the part that begins at from.
  int64_t cut(const char *text, int64_t from, int64_t bytes) const {
    int64_t at = from + kPart;
    if (at >= bytes) return bytes;
    while (at < bytes && (text[at] & 0xc0) == 0x80) at++;
    while (at < bytes) {
      int length;
      uint32_t before = character(text + at, text + bytes, &length);
      at += length;
      if (at >= bytes) return bytes;
      if (may_cut(before, character(text + at, text + bytes, &length))) return at;
    }
    return bytes;
  }

  void learn_space() {
    for (const char *piece : {"<0xE2>", "<0x96>", "<0x81>"}) {
      int id = whole.PieceToId(piece);
      if (!whole.IsByte(id)) {
        space_bytes.clear();
        return;
      }
      space_bytes.push_back(id);
    }
  }

  // The bytes of U+2581 at the beginning of a text.
  static int64_t leading_spaces(const char *text, int64_t bytes) {
    int64_t at = 0;
    while (bytes - at >= 3 && std::memcmp(text + at, kSpaceText, 3) == 0) at += 3;
    return at;
  }

  // Where the text that the library may see ends: at the next U+2581 that is to be spelled.
  int64_t plain_end(const char *text, int64_t from, int64_t bytes) const {
    if (space_bytes.empty()) return bytes;
    auto left = static_cast<size_t>(bytes - from);
    auto found = static_cast<const char *>(memmem(text + from, left, kSpaceText, 3));
    return found ? found - text : bytes;
  }

  void learn_pieces() {
    for (int id = 0; id < whole.GetPieceSize(); id++) {
      const std::string &piece = whole.IdToPiece(id);
      if (whole.IsControl(id) || whole.IsUnknown(id) || whole.IsByte(id)) continue;
      if (!is_utf8(piece)) {
        by_parts = false;
        return;
      }
      uint32_t before = 0;
      for (size_t i = 0; i < piece.size();) {
        int length;
        uint32_t now = character(piece.data() + i, piece.data() + piece.size(), &length);
        if (i > 0) neighbours.insert(static_cast<uint64_t>(before) << 32 | now);
        before = now;
        i += static_cast<size_t>(length);
        if (static_cast<size_t>(length) == piece.size()) known.insert(now);
      }
    }
  }
};

static pk_spm *open_model(const char *model, int64_t bytes, std::string *problem) {
  Settings settings = read_settings(model, bytes);
  if (settings.problem) {
    *problem = std::string("not a SentencePiece model, or damaged: ") + settings.problem;
    return nullptr;
  }
  std::unique_ptr<pk_spm> spm(new pk_spm);
  std::string text(model, static_cast<size_t>(bytes));
  auto status = spm->whole.LoadFromSerializedProto(text);
  if (!status.ok()) {
    *problem = "not a SentencePiece model: " + status.ToString();
    return nullptr;
  }
  spm->byte_fallback = settings.byte_fallback;
  spm->by_parts = settings.bpe && !settings.space_is_suffix && !settings.has_rules &&
                  !settings.removes_spaces && settings.escapes_spaces;
  bool keeps_text = !settings.space_is_suffix && !settings.has_rules && !settings.removes_spaces &&
                    settings.escapes_spaces;
  if (spm->by_parts || (keeps_text && spm->byte_fallback)) {
    // Protobuf merges a message that comes twice: normalizer_spec { add_dummy_prefix: false }.
    text += std::string("\x1a\x02\x18\x00", 4);
    bool good = spm->rest.LoadFromSerializedProto(text).ok();
    spm->by_parts = spm->by_parts && good;
    if (good && spm->byte_fallback) spm->learn_space();
  }
  if (spm->by_parts) spm->learn_pieces();
  return spm.release();
}

// Runs call and turns an exception into a message.
template <typename Call> static char *guarded(Call call) {
  try {
    std::string problem;
    call(&problem);
    return problem.empty() ? nullptr : copy(problem);
  } catch (const std::bad_alloc &) {
    return copy("no memory");
  } catch (const std::exception &e) {
    return copy(e.what());
  }
}

char *pk_spm_open(const char *model, int64_t bytes, pk_spm **spm) {
  *spm = nullptr;
  return guarded([&](std::string *problem) { *spm = open_model(model, bytes, problem); });
}

void pk_spm_close(pk_spm *spm) {
  delete spm;
}

int64_t pk_spm_size(const pk_spm *spm) {
  return spm->whole.GetPieceSize();
}

int64_t pk_spm_eos(const pk_spm *spm) {
  return spm->whole.eos_id();
}

int64_t pk_spm_unknown(const pk_spm *spm) {
  return spm->whole.unk_id();
}

static void encode(const pk_spm *spm, const char *text, int64_t bytes, pk_spm_take take,
                   void *target, std::string *problem) {
  std::vector<int> ids;
  int64_t end = spm->plain_end(text, pk_spm::leading_spaces(text, bytes), bytes);
  for (int64_t from = 0; from < bytes;) {
    if (from == end) {
      if (take(target, spm->space_bytes.data(), 3)) {
        *problem = "no memory for the tokens";
        return;
      }
      from += 3;
      end = spm->plain_end(text, from, bytes);
      continue;
    }
    int64_t to = spm->by_parts ? spm->cut(text, from, end) : end;
    if (to - from > kLongest) {
      *problem = "a text of " + std::to_string(to - from) +
                 " bytes without a place where it may be cut; at most " + std::to_string(kLongest) +
                 " can be encoded at once";
      return;
    }
    const auto &processor = from == 0 ? spm->whole : spm->rest;
    auto status =
        processor.Encode(absl::string_view(text + from, static_cast<size_t>(to - from)), &ids);
    if (!status.ok()) {
      *problem = status.ToString();
      return;
    }
    if (take(target, ids.data(), static_cast<int64_t>(ids.size()))) {
      *problem = "no memory for the tokens";
      return;
    }
    from = to;
  }
}

char *pk_spm_encode(const pk_spm *spm, const char *text, int64_t bytes, pk_spm_take take,
                    void *target) {
  return guarded([&](std::string *problem) { encode(spm, text, bytes, take, target, problem); });
}

char *pk_spm_decode(const pk_spm *spm, const int32_t *ids, int64_t count, char **text,
                    int64_t *bytes) {
  return guarded([&](std::string *problem) {
    std::string result;
    auto status = spm->whole.Decode(std::vector<int>(ids, ids + count), &result);
    if (!status.ok()) {
      *problem = status.ToString();
      return;
    }
    *text = copy(result);
    *bytes = static_cast<int64_t>(result.size());
    if (!*text) *problem = "no memory for the text";
  });
}

char *pk_spm_piece(const pk_spm *spm, int64_t id) {
  return copy(spm->whole.IdToPiece(static_cast<int>(id)));
}
