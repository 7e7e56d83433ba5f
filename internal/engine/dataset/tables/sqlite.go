package tables

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ncruces/go-sqlite3"

	"github.com/vllm-vcr/conformance/internal/engine/dataset"
)

// The columns of the table llmd, and their types.
var columns = []struct{ name, kind string }{
	{"id", "INTEGER"}, {"prompt_hash", "BLOB"}, {"gen_tokens", "JSON"}, {"n_gen_tokens", "INTEGER"},
}

// readSQLite reads the table llmd.
func readSQLite(t *dataset.Table, path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 {
		return err
	}
	// The package gives each connection a memory of its own, of at most 256 MB.
	db, err := sqlite3.OpenFlags(path, sqlite3.OPEN_READONLY)
	if err != nil {
		return err
	}
	defer db.Close()
	db.Limit(sqlite3.LIMIT_LENGTH, dataset.MaxRow)
	// A foreign database runs no code of its own.
	if err := db.Exec("PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON"); err != nil {
		return locked(err)
	}
	if err := checkTable(db); err != nil {
		return locked(err)
	}
	query, _, err := db.Prepare("SELECT id, prompt_hash, gen_tokens, n_gen_tokens FROM llmd ORDER BY id")
	if err != nil {
		return err
	}
	defer query.Close()
	for query.Step() {
		r, err := rowOf(query)
		if err != nil {
			return fmt.Errorf("row with id %d: %w", query.ColumnInt64(0), err)
		}
		if r.Tokens == nil {
			t.Skipped++
			continue
		}
		if t.Append(r); t.Taken() > dataset.Limit(info.Size()) { // pages of a broken tree may be shared
			return fmt.Errorf("row with id %d: %w", r.Number, dataset.ErrTooLarge(info.Size()))
		}
	}
	return locked(query.Err())
}

func locked(err error) error {
	if errors.Is(err, sqlite3.BUSY) || errors.Is(err, sqlite3.LOCKED) {
		return fmt.Errorf("the database is locked: end what writes to it: %w", err)
	}
	return err
}

// checkTable looks at the table before anything of it is run: a view could take for ever.
func checkTable(db *sqlite3.Conn) error {
	found, err := one(db, "SELECT count(*) FROM sqlite_schema WHERE name='llmd' AND type='table' AND sql LIKE 'CREATE TABLE%'")
	if err != nil {
		return err
	}
	if found != "1" {
		return errors.New("no table llmd in the database")
	}
	for _, c := range columns {
		kind, err := one(db, "SELECT upper(type) FROM pragma_table_info('llmd') WHERE name='"+c.name+"'")
		switch {
		case err != nil:
			return err
		case kind == "":
			return fmt.Errorf("missing expected column in llmd table: %s", c.name)
		case kind != c.kind:
			return fmt.Errorf("column %s has incorrect type: expected %s, got %.40q", c.name, c.kind, kind)
		}
	}
	return nil
}

// one returns the text of a query that has one value, or "" when there is none.
func one(db *sqlite3.Conn, sql string) (string, error) {
	query, _, err := db.Prepare(sql)
	if err != nil {
		return "", err
	}
	defer query.Close()
	if query.Step() {
		return query.ColumnText(0), nil
	}
	return "", query.Err()
}

func rowOf(query *sqlite3.Stmt) (dataset.Row, error) {
	r := dataset.Row{Number: query.ColumnInt(0)}
	hash := query.ColumnRawBlob(1)
	if len(hash) != len(r.Hash) {
		return r, fmt.Errorf("prompt_hash has %d bytes: want the %d of a SHA-256", len(hash), len(r.Hash))
	}
	copy(r.Hash[:], hash)
	// The tool of llm-d-inference-sim writes Tokens and Strings, and its documentation has tokens as numbers.
	var said struct {
		Tokens, Numbers []uint32
		Strings         []string
	}
	if err := json.Unmarshal(query.ColumnRawBlob(2), &said); err != nil {
		return r, fmt.Errorf("gen_tokens: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	said.Numbers = append(said.Numbers, said.Tokens...)
	r.Completion = strings.Join(said.Strings, "")
	if n := query.ColumnInt(3); n != len(said.Numbers) {
		return r, fmt.Errorf("gen_tokens has %d numbers, but n_gen_tokens is %d", len(said.Numbers), n)
	}
	if len(said.Numbers) > 0 {
		r.Tokens = said.Numbers
	}
	return r, nil
}
