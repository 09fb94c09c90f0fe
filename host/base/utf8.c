/* UTF-8: checking, and reading and writing one character. */
#include "base/utf8.h"

#include <string.h>

/* Length of the character at text, or 0 if it is not one. */
static int64_t character(const unsigned char *text, int64_t bytes) {
  unsigned char lead = text[0];
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  int64_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (length > bytes) return 0;
  unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (text[1] < low || text[1] > high) return 0;
  for (int64_t i = 2; i < length; i++) {
    if ((text[i] & 0xc0) != 0x80) return 0;
  }
  return length;
}

int64_t pk_utf8_defect(const char *text, int64_t bytes) {
  int64_t i = 0;
  while (i < bytes) {
    /* Most text is ASCII: eight bytes at a time. */
    uint64_t word;
    while (i + 8 <= bytes) {
      memcpy(&word, text + i, 8);
      if (word & 0x8080808080808080u) break;
      i += 8;
    }
    if (i == bytes) break;
    int64_t length = character((const unsigned char *)text + i, bytes - i);
    if (length == 0) return i;
    i += length;
  }
  return -1;
}

int pk_utf8_write(uint32_t point, char *text) {
  if (point < 0x80) {
    text[0] = (char)point;
    return 1;
  }
  if (point < 0x800) {
    text[0] = (char)(0xc0 | point >> 6);
    text[1] = (char)(0x80 | (point & 63));
    return 2;
  }
  if (point < 0x10000) {
    text[0] = (char)(0xe0 | point >> 12);
    text[1] = (char)(0x80 | (point >> 6 & 63));
    text[2] = (char)(0x80 | (point & 63));
    return 3;
  }
  text[0] = (char)(0xf0 | point >> 18);
  text[1] = (char)(0x80 | (point >> 12 & 63));
  text[2] = (char)(0x80 | (point >> 6 & 63));
  text[3] = (char)(0x80 | (point & 63));
  return 4;
}

uint32_t pk_utf8_read(const char *text, int *length) {
  const unsigned char *t = (const unsigned char *)text;
  *length = t[0] < 0x80 ? 1 : t[0] < 0xe0 ? 2 : t[0] < 0xf0 ? 3 : 4;
  switch (*length) {
  case 1:
    return t[0];
  case 2:
    return (t[0] & 31u) << 6 | (t[1] & 63u);
  case 3:
    return (t[0] & 15u) << 12 | (t[1] & 63u) << 6 | (t[2] & 63u);
  default:
    return (t[0] & 7u) << 18 | (t[1] & 63u) << 12 | (t[2] & 63u) << 6 | (t[3] & 63u);
  }
}
