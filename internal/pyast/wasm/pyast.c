// The module's face to Go: one call parses a file and returns its syntax tree as one array.
//
// The module imports one function, env.stop, and nothing of WASI: what the C library would ask of a system is defined at
// the end of this file.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tree_sitter/api.h"

#define EXPORT(name) __attribute__((export_name(#name)))

const TSLanguage *tree_sitter_python(void);

// stop reports whether the caller has lost interest. at is the byte that the parser is at.
__attribute__((import_module("env"), import_name("stop"))) uint32_t host_stop(uint32_t at);

// A record is a node. Records are in pre-order, so that a parent is before its children. Go reads them as they lie here:
// five little-endian words.
typedef struct {
  uint16_t symbol;
  uint8_t field; // 0 without one
  uint8_t flags;
  uint32_t start, end; // bytes
  uint32_t row;
  uint32_t parent; // index; that of the root is its own
} Record;

enum { NAMED = 1, MISSING = 2, BROKEN = 4 };

static struct {
  Record *records;
  uint32_t count, room;
} tree;

static char *source;

// reserve returns where Go writes the source.
EXPORT(reserve) char *reserve(uint32_t length) {
  source = malloc(length + 1);
  if (!source) abort();
  return source;
}

// What a parse may cost: the parser needs time that grows with the square of some sources, or worse. Steps are those of the
// parser, bytes are those that it looks at, again and again where it goes back. Of thousands of files of released packages,
// none took more than 3 steps and 40 bytes for each of its own.
static struct {
  uint64_t steps, bytes, broken_steps; // broken_steps: those with an error in reach, which take ten times as long
  uint64_t most_steps, most_bytes;
} work;

enum { STEPS_A_CALL = 100, CHUNK = 4096 };

static bool exceeded(void) { return work.steps > work.most_steps || work.bytes > work.most_bytes; }

static bool stop(TSParseState *state) {
  work.steps += STEPS_A_CALL;
  if (state->has_error) work.broken_steps += STEPS_A_CALL;
  return exceeded() || host_stop(state->current_byte_offset) != 0;
}

typedef struct {
  const char *text;
  uint32_t length;
} Text;

// read_chunk gives the parser the text piece by piece, so that each look back counts. Once the work is too much, the text
// ends: that ends a token, and the parser asks whether to stop between tokens only.
static const char *read_chunk(void *payload, uint32_t at, TSPoint point, uint32_t *length) {
  (void)point;
  Text *text = payload;
  work.bytes += CHUNK;
  uint32_t rest = at < text->length && !exceeded() ? text->length - at : 0;
  *length = rest < CHUNK ? rest : CHUNK;
  return text->text + (rest ? at : 0);
}

// add appends a node and returns its index.
static uint32_t add(TSNode node, TSFieldId field, uint32_t parent) {
  if (tree.count == tree.room) {
    tree.room = tree.room ? tree.room * 2 : 4096;
    tree.records = realloc(tree.records, (size_t)tree.room * sizeof(Record));
    if (!tree.records) abort();
  }
  tree.records[tree.count] = (Record){
    .symbol = ts_node_symbol(node),
    .field = (uint8_t)field,
    .flags = (ts_node_is_named(node) ? NAMED : 0) | (ts_node_is_missing(node) ? MISSING : 0) |
             (ts_node_is_error(node) ? BROKEN : 0),
    .start = ts_node_start_byte(node),
    .end = ts_node_end_byte(node),
    .row = ts_node_start_point(node).row,
    .parent = parent,
  };
  return tree.count++;
}

// flatten writes the records of a tree. It returns false if it was stopped.
static bool flatten(TSTree *parsed) {
  TSTreeCursor cursor = ts_tree_cursor_new(ts_tree_root_node(parsed));
  uint32_t at = add(ts_tree_cursor_current_node(&cursor), 0, 0);
  for (;;) {
    if (tree.count % 4096 == 0 && host_stop(tree.records[at].start)) return false;
    uint32_t parent = at;
    if (!ts_tree_cursor_goto_first_child(&cursor)) {
      while (!ts_tree_cursor_goto_next_sibling(&cursor)) {
        if (!ts_tree_cursor_goto_parent(&cursor)) {
          ts_tree_cursor_delete(&cursor);
          return true;
        }
        at = tree.records[at].parent;
      }
      parent = tree.records[at].parent;
    }
    at = add(ts_tree_cursor_current_node(&cursor), ts_tree_cursor_current_field_id(&cursor), parent);
  }
}

// parse parses the reserved source and returns how many records there are, or 0 if it was stopped or the work is too much,
// which leaves a module that must not be used again.
EXPORT(parse) uint32_t parse(uint32_t length) {
  TSParser *parser = ts_parser_new();
  if (!ts_parser_set_language(parser, tree_sitter_python())) abort();
  Text text = {source, length};
  work.steps = work.bytes = work.broken_steps = 0;
  work.most_steps = 1000000 + 8ull * length;
  work.most_bytes = (64 << 20) + 256ull * length;
  TSInput input = {&text, read_chunk, TSInputEncodingUTF8, NULL};
  TSParseOptions options = {NULL, stop};
  TSTree *parsed = ts_parser_parse_with_options(parser, NULL, input, options);
  if (!parsed) return 0;
  bool whole = flatten(parsed);
  ts_tree_delete(parsed);
  ts_parser_delete(parser);
  return whole ? tree.count : 0;
}

EXPORT(dbg) uint32_t dbg(uint32_t i) { return i==0?work.steps:i==1?work.bytes>>10:work.broken_steps; }
EXPORT(records) Record *records(void) { return tree.records; }

// release frees the source and the records.
EXPORT(release) void release(void) {
  free(source);
  free(tree.records);
  source = NULL;
  tree.records = NULL;
  tree.count = tree.room = 0;
}

// symbol_name and field_name return a C string, or NULL beyond the last.
EXPORT(symbol_name) const char *symbol_name(uint32_t symbol) {
  const TSLanguage *language = tree_sitter_python();
  return symbol < ts_language_symbol_count(language) ? ts_language_symbol_name(language, (TSSymbol)symbol) : NULL;
}

EXPORT(field_name) const char *field_name(uint32_t field) {
  const TSLanguage *language = tree_sitter_python();
  return field <= ts_language_field_count(language) ? ts_language_field_name_for_id(language, (TSFieldId)field) : NULL;
}

// In place of the C library's: nobody reads what would be written, there is no clock to look at as no time limit is
// set, and whatever ends the program ends this module only.
FILE *const stderr = NULL;
int fprintf(FILE *file, const char *format, ...) { return (void)file, (void)format, 0; }
int snprintf(char *out, size_t size, const char *format, ...) { return (void)out, (void)size, (void)format, 0; }
int vsnprintf(char *out, size_t size, const char *format, va_list arguments) {
  return (void)out, (void)size, (void)format, (void)arguments, 0;
}
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  return (void)data, (void)size, (void)file, count;
}
int fputs(const char *text, FILE *file) { return (void)text, (void)file, 0; }
int fputc(int c, FILE *file) { return (void)file, c; }
int fclose(FILE *file) { return (void)file, 0; }
FILE *fdopen(int descriptor, const char *mode) { return (void)descriptor, (void)mode, NULL; }
int clock_gettime(clockid_t clock, struct timespec *now) { return (void)clock, (void)now, -1; }
_Noreturn void __assert_fail(const char *what, const char *file, int line, const char *function) {
  (void)what, (void)file, (void)line, (void)function;
  __builtin_trap();
}
