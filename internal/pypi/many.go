package pypi

import (
	"archive/zip"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

const (
	maxGap    = 256 << 10 // bytes that are downloaded for nothing rather than asking twice
	maxBatch  = 4 << 20   // bytes of a request for several members
	atOnce    = 6         // requests
	beyond    = 1 << 10   // bytes that a member may have beside its data and name
	headerLen = 30        // bytes of a member before its name
	headerTag = 0x04034b50
)

// ReadFiles returns several members of at most limit bytes each, by name, and the names of those that are not there, in
// the order in which they were asked for. Members that lie close to each other are downloaded by one request, and
// several requests are under way at a time, so that all sources of a release are a matter of seconds.
func (w *Wheel) ReadFiles(names []string, limit int64) (files map[string][]byte, absent []string, err error) {
	wanted := map[string]*zip.File{}
	for _, name := range names {
		f, err := w.find(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if !slices.Contains(absent, name) {
				absent = append(absent, name)
			}
		case err != nil:
			return nil, nil, err
		case f.UncompressedSize64 > uint64(max(limit, 0)):
			return nil, nil, w.tooLarge(name, limit)
		default:
			wanted[name] = f
		}
	}
	batches, rest, err := w.batches(wanted)
	if err != nil {
		return nil, nil, err
	}
	files = make(map[string][]byte, len(wanted))
	if len(batches) > 0 {
		err = w.readBatches(batches, limit, files)
	}
	for _, name := range rest {
		if err == nil {
			files[name], err = w.ReadFile(name, limit)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return files, absent, nil
}

// A batch is what one request fetches, from start to before end, and the members that are in it.
type batch struct {
	start, end int64
	names      []string
}

// batches groups members by where they lie. Those that need no request, or more than one, are the rest.
func (w *Wheel) batches(wanted map[string]*zip.File) (batches []batch, rest []string, err error) {
	names := slices.Sorted(maps.Keys(wanted))
	if w.parts == nil || len(names) < 2 {
		return nil, names, nil
	}
	begins, err := w.begins()
	if err != nil {
		return nil, nil, w.unreadable(err)
	}
	var single []batch
	for _, name := range names {
		b := batch{start: begins[name], names: []string{name}}
		length := headerLen + uint64(len(name)) + beyond + wanted[name].CompressedSize64
		if length > maxBatch || !w.parts.lacks(b.start) {
			rest = append(rest, name)
			continue
		}
		b.end = min(b.start+int64(length), w.parts.size)
		single = append(single, b)
	}
	slices.SortStableFunc(single, func(a, b batch) int { return cmp.Compare(a.start, b.start) })
	return joined(single), rest, nil
}

// joined puts neighbours together, which are in ascending order.
func joined(single []batch) []batch {
	var batches []batch
	for _, b := range single {
		if n := len(batches); n > 0 {
			last := &batches[n-1]
			if b.start <= last.end+maxGap && b.end-last.start <= maxBatch {
				last.end = max(last.end, b.end)
				last.names = append(last.names, b.names...)
				continue
			}
		}
		batches = append(batches, b)
	}
	return batches
}

// readBatches reads the members of all batches, several batches at a time. The first error ends it.
func (w *Wheel) readBatches(batches []batch, limit int64, files map[string][]byte) error {
	ctx, cancel := context.WithCancel(w.parts.ctx)
	defer cancel()
	var (
		mu    sync.Mutex // guards files and first
		first error
		wg    sync.WaitGroup
	)
	queue := make(chan batch, len(batches))
	for _, b := range batches {
		queue <- b
	}
	close(queue)
	for range min(atOnce, len(batches)) {
		wg.Go(func() {
			for b := range queue {
				got, err := w.readBatch(ctx, b, limit)
				mu.Lock()
				maps.Copy(files, got)
				if first == nil {
					first = err
				}
				mu.Unlock()
				if err != nil {
					cancel()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

func (w *Wheel) readBatch(ctx context.Context, b batch, limit int64) (map[string][]byte, error) {
	fetched, err := w.parts.fetch(ctx, b.start, b.end)
	if err != nil {
		return nil, err
	}
	defer w.parts.hold(fetched)()
	files := map[string][]byte{}
	for _, name := range b.names {
		if files[name], err = w.ReadFile(name, limit); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// beginnings returns the offset of each member.
func beginnings(r io.ReaderAt, size int64) (map[string]int64, error) {
	headers := &blankHeaders{ReaderAt: r}
	archive, err := zip.NewReader(headers, size)
	if err != nil {
		return nil, err
	}
	headers.blank = true
	begins := make(map[string]int64, len(archive.File))
	for _, f := range archive.File {
		start, err := f.DataOffset()
		if err != nil {
			return nil, err
		}
		begins[f.Name] = start - headerLen
	}
	return begins, nil
}

// blankHeaders lets every member seem to have a header of which nothing but the fixed part is there. Where a member
// begins is not told by archive/zip, but where its data begins, for which it reads the header: a request for each
// member, if it were the real one.
type blankHeaders struct {
	io.ReaderAt
	blank bool
}

func (h *blankHeaders) ReadAt(p []byte, off int64) (int, error) {
	if !h.blank {
		return h.ReaderAt.ReadAt(p, off)
	}
	if off < 0 {
		return 0, zip.ErrFormat
	}
	clear(p)
	binary.LittleEndian.PutUint32(p, headerTag)
	return len(p), nil
}
