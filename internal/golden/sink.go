package golden

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
)

// A sink takes the bytes of a download: it hashes them and writes them into the cache, and also into memory if they are
// wanted there.
type sink struct {
	store  *Store
	pin    pin
	form   form
	hash   hash.Hash
	size   int64
	draft  *draft        // nil: the cache cannot be written
	memory *bytes.Buffer // nil: not wanted
}

// newSink begins an entry of the cache. To do without the cache is good enough only for what goes into memory.
func (s *Store) newSink(p pin, form form) (*sink, error) {
	k := &sink{store: s, pin: p, form: form, hash: sha256.New()}
	if form == inMemory {
		k.memory = new(bytes.Buffer)
	}
	dir, err := s.cacheDir()
	if err == nil {
		k.draft, err = newDraft(dir, p.sha256)
	}
	if err != nil {
		return k, k.without(err)
	}
	return k, nil
}

// without goes on without the cache, or says why that cannot be.
func (k *sink) without(err error) error {
	k.discard()
	dir, _ := k.store.cacheDir()
	failed := &CacheError{Dir: dir, Err: err}
	if k.form != inMemory {
		return failed
	}
	k.store.log().Warn("golden not cached", "golden", k.pin.location, "error", failed)
	return nil
}

func (k *sink) Write(b []byte) (int, error) {
	k.hash.Write(b)
	k.size += int64(len(b))
	if k.memory != nil {
		k.memory.Write(b)
	}
	if k.draft != nil {
		if _, err := k.draft.Write(b); err != nil {
			return len(b), k.without(err)
		}
	}
	return len(b), nil
}

// restart forgets all that was written.
func (k *sink) restart() error {
	k.hash.Reset()
	k.size = 0
	if k.memory != nil {
		k.memory.Reset()
	}
	if k.draft == nil {
		return nil
	}
	_, err := k.draft.Seek(0, io.SeekStart)
	if err == nil {
		err = k.draft.Truncate(0)
	}
	if err != nil {
		return k.without(err)
	}
	return nil
}

// finish verifies what was written, keeps it, and returns it in the form that is wanted.
func (k *sink) finish() (got, error) {
	if err := k.pin.check(k.size, hex.EncodeToString(k.hash.Sum(nil))); err != nil {
		return got{}, err
	}
	g := got{from: k.pin.location, size: k.size}
	if k.memory != nil {
		g.data = k.memory.Bytes()
	}
	if k.draft == nil {
		return g, nil
	}
	err := k.draft.keep(k.pin.sha256)
	if err == nil && k.form == asFile {
		g.file, err = k.open()
	}
	if err != nil {
		if err := k.without(err); err != nil {
			return got{}, k.pin.cannot(err, 0)
		}
	}
	return g, nil
}

// open opens the entry that was just made, which need not be hashed again.
func (k *sink) open() (*File, error) {
	dir, err := k.store.cacheDir()
	if err != nil {
		return nil, err
	}
	f, err := openEntry(dir, k.pin.sha256)
	if err != nil {
		return nil, err
	}
	return &File{SectionReader: io.NewSectionReader(f, 0, k.size), From: k.pin.location, closer: f}, nil
}

// discard removes what was not kept.
func (k *sink) discard() {
	if k.draft != nil {
		k.draft.discard()
	}
	k.draft = nil
}
