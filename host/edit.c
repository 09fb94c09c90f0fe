/* Editing a line on a terminal by libedit: its keys, history and completion, ^C and window size. */
#include <stdlib.h>

#include "packlua.h"

#ifndef PK_HAVE_LIBEDIT

const char *pk_editor_info(void) {
  return "";
}

pk_editor *pk_editor_open(pk_complete complete, void *target) {
  (void)complete, (void)target;
  return NULL;
}

void pk_editor_close(pk_editor *editor) {
  (void)editor;
}

int pk_editor_read(pk_editor *editor, const char *prompt, char **line) {
  (void)editor, (void)prompt;
  *line = NULL;
  return PK_LINE_END;
}

#else

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/handlers.h"

struct pk_editor {
  EditLine *line;
  History *history;
  const char *prompt;
  pk_complete complete;
  void *target;
  char path[PATH_MAX]; /* of the history; "" if there is none */
};

#define TEXT_OF(number) #number
#define LINE_OF(major, minor) "libedit " TEXT_OF(major) "." TEXT_OF(minor) "\n"

const char *pk_editor_info(void) {
  return LINE_OF(LIBEDIT_MAJOR, LIBEDIT_MINOR);
}

/* What came while a line was read. The signals are blocked but for the wait for a key, so that none
 * is lost between looking and waiting. */
static volatile sig_atomic_t interrupted, resized, continued;
static const int numbers[] = {SIGINT, SIGWINCH, SIGCONT};
enum { SIGNALS = sizeof numbers / sizeof *numbers };

static void note_signal(int number) {
  if (number == SIGINT) interrupted = 1;
  if (number == SIGWINCH) resized = 1;
  if (number == SIGCONT) continued = 1;
}

typedef struct guard {
  pk_handler_before before[SIGNALS];
  sigset_t mask;
} guard;

static void catch_signals(guard *saved) {
  interrupted = resized = continued = 0;
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < SIGNALS; i++) sigaddset(&set, numbers[i]);
  pthread_sigmask(SIG_BLOCK, &set, &saved->mask);
  for (int i = 0; i < SIGNALS; i++) pk_handler_set(numbers[i], note_signal, 0, &saved->before[i]);
}

static void release_signals(const guard *saved) {
  for (int i = 0; i < SIGNALS; i++) pk_handler_restore(&saved->before[i]);
  pthread_sigmask(SIG_SETMASK, &saved->mask, NULL);
}

/* Waits for a key. Returns 0 if ^C came instead. */
static int wait_for_key(EditLine *line) {
  sigset_t open;
  pthread_sigmask(SIG_BLOCK, NULL, &open);
  for (int i = 0; i < SIGNALS; i++) sigdelset(&open, numbers[i]);
  struct pollfd file = {.fd = STDIN_FILENO, .events = POLLIN};
  while (ppoll(&file, 1, NULL, &open) < 0 && errno == EINTR) {
    if (interrupted) return 0;
    if (resized) el_resize(line); /* the next key draws the line anew */
    if (continued) {              /* the shell had the terminal */
      el_set(line, EL_PREP_TERM, 1);
      el_set(line, EL_REFRESH);
    }
    continued = resized = 0;
  }
  return 1;
}

/* A character of the locale's encoding, for libedit: 1, 0 at the end of input, -1 for ^C. */
static int read_character(EditLine *line, wchar_t *character) {
  mbstate_t state = {0};
  for (;;) {
    if (!wait_for_key(line)) return -1;
    char byte;
    ssize_t got = read(STDIN_FILENO, &byte, 1);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return 0;
    size_t used = mbrtowc(character, &byte, 1, &state);
    if (used == (size_t)-2) continue; /* more bytes to come */
    if (used == (size_t)-1) *character = L'?';
    return 1;
  }
}

static char *prompt_of(EditLine *line) {
  pk_editor *editor;
  el_get(line, EL_CLIENTDATA, &editor);
  return (char *)editor->prompt;
}

static int columns(void) {
  struct winsize size;
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

enum {
  PASTE_MILLISECONDS = 20
}; /* longer than text that is pasted pauses, shorter than fingers do */

/* Whether more input follows at once, as it does in pasted text. */
static int is_pasted(void) {
  struct pollfd file = {.fd = STDIN_FILENO, .events = POLLIN};
  return poll(&file, 1, PASTE_MILLISECONDS) > 0 && file.revents & POLLIN;
}

/* Bound to the tabulator, which in pasted text is a character as any other. */
static unsigned char complete(EditLine *line, int key) {
  (void)key;
  if (is_pasted()) return el_insertstr(line, "\t") == 0 ? CC_REFRESH : CC_ERROR;
  pk_editor *editor;
  el_get(line, EL_CLIENTDATA, &editor);
  const LineInfo *info = el_line(line);
  pk_completion found = editor->complete(editor->target, info->buffer,
                                         (size_t)(info->cursor - info->buffer), columns());
  unsigned char result = CC_ERROR;
  if (found.insert && *found.insert && el_insertstr(line, found.insert) == 0) result = CC_REFRESH;
  if (found.listing && *found.listing) {
    printf("\n%s", found.listing);
    fflush(stdout);
    result = CC_REDISPLAY;
  }
  free(found.insert);
  free(found.listing);
  return result;
}

static void bind_keys(EditLine *line) {
  static const char *const keys[][2] = {
      {"^I", "packlua-complete"},    {"^R", "em-inc-search-prev"},
      {"^W", "ed-delete-prev-word"}, {"\\e[3~", "ed-delete-next-char"},
      {"\\e[H", "ed-move-to-beg"},   {"\\e[F", "ed-move-to-end"},
      {"\\e[1~", "ed-move-to-beg"},  {"\\e[4~", "ed-move-to-end"},
      {"\\e[1;5C", "em-next-word"},  {"\\e[1;5D", "ed-prev-word"},
  };
  el_set(line, EL_EDITOR, "emacs");
  el_set(line, EL_ADDFN, "packlua-complete", "completes names and files", complete);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    el_set(line, EL_BIND, keys[i][0], keys[i][1], NULL);
  el_source(line, NULL); /* the user's ~/.editrc has the last word */
}

static void remember(void *target, const char *text) {
  HistEvent event;
  history(target, &event, H_ENTER, text);
}

static int open_history(pk_editor *editor) {
  HistEvent event;
  editor->history = history_init();
  if (!editor->history) return 0;
  history(editor->history, &event, H_SETSIZE, PK_HISTORY_LINES);
  history(editor->history, &event, H_SETUNIQUE, 1);
  el_set(editor->line, EL_HIST, history, editor->history);
  if (pk_history_path(editor->path)) {
    pk_history_read(editor->path, remember, editor->history);
  } else {
    editor->path[0] = 0;
  }
  return 1;
}

/* Without a locale that says otherwise, what is typed is UTF-8. */
static void choose_encoding(void) {
  setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
}

pk_editor *pk_editor_open(pk_complete completer, void *target) {
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return NULL;
  pk_editor *editor = calloc(1, sizeof *editor);
  if (!editor) return NULL;
  choose_encoding();
  editor->complete = completer;
  editor->target = target;
  editor->prompt = "> ";
  editor->line = el_init("packlua", stdin, stdout, stderr);
  if (!editor->line || !open_history(editor)) {
    pk_editor_close(editor);
    return NULL;
  }
  el_set(editor->line, EL_CLIENTDATA, editor);
  el_set(editor->line, EL_PROMPT, prompt_of);
  el_set(editor->line, EL_SIGNAL, 0);
  el_wset(editor->line, EL_GETCFN, read_character);
  bind_keys(editor->line);
  return editor;
}

void pk_editor_close(pk_editor *editor) {
  if (!editor) return;
  if (editor->line) el_end(editor->line);
  if (editor->history) history_end(editor->history);
  free(editor);
}

/* Lines that begin with a space stay out of the history. */
static void keep(pk_editor *editor, const char *text) {
  if (strspn(text, " \t") > 0 || !*text) return;
  remember(editor->history, text);
  int problem = *editor->path ? pk_history_append(editor->path, text) : 0;
  if (problem == 0) return;
  fprintf(stderr, "packlua: no history: %s: %s\n", editor->path, strerror(problem));
  editor->path[0] = 0;
}

int pk_editor_read(pk_editor *editor, const char *prompt, char **line) {
  guard saved;
  int count = 0;
  editor->prompt = prompt;
  *line = NULL;
  catch_signals(&saved);
  el_set(editor->line, EL_PREP_TERM,
         1); /* before the prompt shows, so that no key is echoed twice */
  const char *text = el_gets(editor->line, &count);
  release_signals(&saved);
  if (interrupted) {
    fputs("^C\n", stdout);
    return PK_LINE_ABANDONED;
  }
  *line = text ? strndup(text, strcspn(text, "\n")) : NULL;
  if (!*line) return PK_LINE_END;
  keep(editor, *line);
  return PK_LINE;
}

#endif
