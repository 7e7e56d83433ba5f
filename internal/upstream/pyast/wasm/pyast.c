// The module's face to Go: one call parses a file and returns its syntax tree as one array.
//
// The module imports one function, env.stop, and nothing of WASI: what the C library would ask of a system is defined
// at the end of this file.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tree_sitter/api.h"

// The core's own.
#include "length.h"
#include "subtree.h"
#include "tree.h"

#define EXPORT(name) __attribute__((export_name(#name)))

const TSLanguage *tree_sitter_python(void);

// stop reports whether the caller has lost interest. at is the byte that the parser is at.
__attribute__((import_module("env"), import_name("stop"))) uint32_t host_stop(uint32_t at);

// A record is a node. Records are in pre-order, so that a parent is before its children. Go reads them as they lie
// here: five little-endian words.
typedef struct {
  uint16_t symbol;
  uint8_t field; // 0 without one
  uint8_t flags;
  uint32_t start, end; // bytes
  uint32_t row;
  uint32_t parent; // index; that of the root is its own
} Record;

enum { NAMED = 1, MISSING = 2, BROKEN = 4, BREAKS_WITHIN = 8 };

static struct {
  Record *records;
  uint32_t count, room;
  uint32_t nodes; // how many of the records; those behind are what add_unseen found
} tree;

static char *source;

// reserve returns where Go writes the source.
EXPORT(reserve) char *reserve(uint32_t length) {
  source = malloc(length + 1);
  if (!source) abort();
  return source;
}

typedef struct {
  const char *text;
  uint32_t length;
  bool stopped;
} Text;

static bool stop(TSParseState *state) {
  Text *text = state->payload;
  if (host_stop(state->current_byte_offset)) text->stopped = true;
  return text->stopped;
}

enum { CHUNK = 64 << 10 };

// read_chunk gives the parser the text piece by piece, and none of it any more once it was stopped: the parser asks
// between tokens only, and looking for the next one may take it through the whole text each time.
static const char *read_chunk(void *payload, uint32_t at, TSPoint point, uint32_t *length) {
  (void)point;
  Text *text = payload;
  if (host_stop(at)) text->stopped = true;
  uint32_t rest = at < text->length && !text->stopped ? text->length - at : 0;
  *length = rest < CHUNK ? rest : CHUNK;
  return text->text + (rest ? at : 0);
}

// add appends a record and returns its index.
static uint32_t add(Record record) {
  if (tree.count == tree.room) {
    tree.room = tree.room ? tree.room * 2 : 4096;
    tree.records = realloc(tree.records, (size_t)tree.room * sizeof(Record));
    if (!tree.records) abort();
  }
  tree.records[tree.count] = record;
  return tree.count++;
}

static uint32_t add_node(const TSTreeCursor *cursor, uint32_t parent) {
  TSNode node = ts_tree_cursor_current_node(cursor);
  return add((Record){
    .symbol = ts_node_symbol(node),
    .field = (uint8_t)ts_tree_cursor_current_field_id(cursor),
    .flags = (ts_node_is_named(node) ? NAMED : 0) | (ts_node_is_missing(node) ? MISSING : 0) |
             (ts_node_is_error(node) ? BROKEN : 0) | (ts_node_has_error(node) ? BREAKS_WITHIN : 0),
    .start = ts_node_start_byte(node),
    .end = ts_node_end_byte(node),
    .row = ts_node_start_point(node).row,
    .parent = parent,
  });
}

// add_unseen adds what the parser put in to go on but is no node, such as the end of a line: without it, a source with
// such an error looks whole.
static void add_unseen(const TSTree *parsed) {
  typedef struct {
    Subtree subtree;
    Length at;
  } Place;
  uint32_t count = 1, room = 64;
  Place *stack = malloc(room * sizeof(Place));
  if (!stack) abort();
  stack[0] = (Place){parsed->root, length_zero()};
  while (count > 0) {
    Place place = stack[--count];
    if (ts_subtree_error_cost(place.subtree) == 0) continue;
    if (ts_subtree_missing(place.subtree) && !ts_subtree_visible(place.subtree)) {
      Length at = length_add(place.at, ts_subtree_padding(place.subtree));
      TSSymbol symbol = ts_subtree_symbol(place.subtree);
      add((Record){.symbol = symbol, .flags = MISSING, .start = at.bytes, .end = at.bytes, .row = at.extent.row});
    }
    uint32_t children = ts_subtree_child_count(place.subtree);
    if (count + children > room) {
      room = 2 * (count + children);
      stack = realloc(stack, room * sizeof(Place));
      if (!stack) abort();
    }
    count += children;
    for (uint32_t i = 0; i < children; i++) {
      Subtree child = ts_subtree_children(place.subtree)[i];
      stack[count - 1 - i] = (Place){child, place.at}; // the first on top
      place.at = length_add(place.at, ts_subtree_total_size(child));
    }
  }
  free(stack);
}

// flatten writes the records of a tree. It returns false if it was stopped.
static bool flatten(TSTree *parsed) {
  TSTreeCursor cursor = ts_tree_cursor_new(ts_tree_root_node(parsed));
  uint32_t at = add_node(&cursor, 0);
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
    at = add_node(&cursor, parent);
  }
}

// parse parses the reserved source and returns how many records there are, or 0 if it was stopped, which leaves a
// module that must not be used again.
EXPORT(parse) uint32_t parse(uint32_t length) {
  TSParser *parser = ts_parser_new();
  if (!ts_parser_set_language(parser, tree_sitter_python())) abort();
  Text text = {source, length, false};
  TSInput input = {&text, read_chunk, TSInputEncodingUTF8, NULL};
  TSParseOptions options = {&text, stop};
  TSTree *parsed = ts_parser_parse_with_options(parser, NULL, input, options);
  if (!parsed || text.stopped || !flatten(parsed)) return 0;
  tree.nodes = tree.count;
  add_unseen(parsed);
  ts_tree_delete(parsed);
  ts_parser_delete(parser);
  return tree.count;
}

// nodes returns how many of the records are nodes. Those behind are places where something is missing that is no node.
EXPORT(nodes) uint32_t nodes(void) { return tree.nodes; }

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
