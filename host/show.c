/* Text as it may be shown on a terminal. */
#include "packlua.h"

/* Whether a control character begins at text: one of ASCII's, or one of U+0080 to U+009F in UTF-8.
 */
static int is_control(const unsigned char *text, size_t left) {
  if (text[0] == '\n' || text[0] == '\t') return 0;
  if (text[0] < 0x20 || text[0] == 0x7f) return 1;
  return text[0] == 0xc2 && left > 1 && text[1] >= 0x80 && text[1] < 0xa0;
}

void pk_show_text(FILE *file, const char *text, size_t length) {
  size_t start = 0;
  for (size_t i = 0; i < length; i++) {
    if (!is_control((const unsigned char *)text + i, length - i)) continue;
    fwrite(text + start, 1, i - start, file);
    fputc('?', file);
    if ((unsigned char)text[i] == 0xc2) i++;
    start = i + 1;
  }
  fwrite(text + start, 1, length - start, file);
}
