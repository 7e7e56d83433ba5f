package recorder

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

func TestPartialNameKeepsTheSuffix(t *testing.T) {
	for _, test := range []struct{ name, want string }{
		{"run.jsonl.gz", "run.partial-0000beef.jsonl.gz"},
		{"a.b/run.jsonl", "a.b/run.partial-0000beef.jsonl"},
		{"v0.33.0-x.frames.jsonl.gz", "v0.33.0-x.frames.partial-0000beef.jsonl.gz"},
		{"run", "run.partial-0000beef"},
		{"run.gz", "run.partial-0000beef.gz"},
		{"/x/.jsonl", "/x/.partial-0000beef.jsonl"},
	} {
		if got := partialName(test.name, 0xbeef); got != test.want || trace.IsGzip(got) != trace.IsGzip(test.name) {
			t.Errorf("%s is written as %s, want %s", test.name, got, test.want)
		}
	}
}

// obsWrite writes text to an output.
func obsWrite(t *testing.T, f *File, text string) {
	t.Helper()
	if n, err := f.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
}

// obsFiles lists a folder.
func obsFiles(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestOutputCommit(t *testing.T) {
	for _, overwrite := range []bool{false, true} {
		dir := t.TempDir()
		path := filepath.Join(dir, "run.jsonl")
		if overwrite {
			require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
		}
		f, err := Create(Destination{Path: path, Overwrite: overwrite})
		require.NoError(t, err)
		obsWrite(t, f, "new")
		if text, _ := os.ReadFile(path); string(text) == "new" || obsRead(t, f.Name()) != "new" {
			t.Errorf("%s has %q before the commit, %s has %q", path, text, f.Name(), obsRead(t, f.Name()))
		}
		where, err := f.Commit(t.Context())
		require.True(t, where == path && err == nil && obsRead(t, path) == "new", "committed to %q, %v", where, err)
		if names := obsFiles(t, dir); len(names) != 1 {
			t.Errorf("files %q", names)
		}
		if _, err := f.Write([]byte("x")); err == nil {
			t.Error("written after the commit")
		}
		if _, err := f.Commit(t.Context()); err == nil {
			t.Error("committed twice")
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there.jsonl")
	require.NoError(t, os.WriteFile(there, nil, 0o600))
	for _, test := range []struct {
		name string
		d    Destination
		want string
	}{
		{"no path", Destination{}, "no path"},
		{"exists", Destination{Path: there}, "exists already"},
		{"a folder", Destination{Path: dir, Overwrite: true}, "is a folder"},
		{"no folder", Destination{Path: filepath.Join(dir, "no", "x.jsonl")}, "no"},
		{"below a file", Destination{Path: filepath.Join(there, "x.jsonl")}, "there.jsonl"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Create(test.d); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
	if names := obsFiles(t, dir); len(names) != 1 {
		t.Errorf("files %q are left", names)
	}
}

// TestCommitDoesNotClobber: a file that came up meanwhile stays.
func TestCommitDoesNotClobber(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.jsonl")
	f := obsCreate(t, path)
	obsWrite(t, f, "mine")
	require.NoError(t, os.WriteFile(path, []byte("theirs"), 0o600))
	_, err := f.Commit(t.Context())
	require.ErrorContains(t, err, "exists already", f.Name())
	require.True(t, obsRead(t, path) == "theirs" && obsRead(t, f.Name()) == "mine", "a file was lost")
}

func TestOutputUpload(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
	}{{name: "accepted"}, {name: "refused", err: errors.New("503")}} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			var sent string
			d := Destination{Path: "s3://bucket/run.jsonl.gz", Upload: func(_ context.Context, path, file string) (string, error) {
				sent = path + ": " + obsRead(t, file)
				return path, test.err
			}}
			f, err := Create(d.forRank(2))
			require.NoError(t, err)
			if filepath.Dir(f.Name()) != os.TempDir() || !f.Gzip() {
				t.Errorf("spooled in %s, gzip %v", f.Name(), f.Gzip())
			}
			obsWrite(t, f, "data")
			where, err := f.Commit(t.Context())
			require.True(t, sent == "s3://bucket/run.rank2.jsonl.gz: data" && errors.Is(err, test.err), "sent %q, error %v", sent, err)
			if test.err == nil {
				if where != "s3://bucket/run.rank2.jsonl.gz" || len(obsFiles(t, os.TempDir())) != 0 {
					t.Errorf("where %q, left %q", where, obsFiles(t, os.TempDir()))
				}
				return
			}
			require.True(t, strings.Contains(err.Error(), f.Name()) && obsRead(t, f.Name()) == "data", "error %v does not name what is kept", err)
		})
	}
}

func TestOutputAbandon(t *testing.T) {
	dir := t.TempDir()
	f := obsCreate(t, filepath.Join(dir, "run.jsonl"))
	if partial := f.Abandon(); partial != "" || len(obsFiles(t, dir)) != 0 {
		t.Errorf("nothing was written, and %q is left", partial)
	}
	f = obsCreate(t, filepath.Join(dir, "run.jsonl"))
	obsWrite(t, f, "half")
	partial := f.Abandon()
	if again := f.Abandon(); again != partial || obsRead(t, partial) != "half" || len(obsFiles(t, dir)) != 1 {
		t.Errorf("left %q, then %q", partial, again)
	}
}

// TestOutputInPlace: a device is written, not replaced.
func TestOutputInPlace(t *testing.T) {
	f, err := Create(Destination{Path: os.DevNull})
	require.NoError(t, err)
	obsWrite(t, f, "x")
	if where, err := f.Commit(t.Context()); where != os.DevNull || err != nil {
		t.Errorf("%q, %v", where, err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Error("the device was replaced")
	}
}

// obsFullDisk takes so many bytes, and then a part of the write that does not fit.
type obsFullDisk struct {
	f    *os.File
	free int
}

var errObsFull = errors.New("no space left on device")

func (d *obsFullDisk) Write(p []byte) (int, error) {
	n, err := d.f.Write(p[:min(len(p), d.free)])
	d.free -= n
	if n < len(p) && err == nil {
		err = errObsFull
	}
	return n, err
}

// TestFullDisk: recording of one file stops, says so, and what is safe of it is
// readable; the other files go on and come to their places.
func TestFullDisk(t *testing.T) {
	for _, test := range []struct {
		name  string
		disk  func(s *obsSession) *File
		trace bool // the trace is the broken one
	}{
		{name: "trace", trace: true, disk: func(s *obsSession) *File { return s.o.files.sinks[traceFile].file }},
		{name: "step statistics", disk: func(s *obsSession) *File { return s.o.files.sinks[stepsFile].file }},
		{name: "frames", disk: func(s *obsSession) *File { return s.o.files.sinks[framesFile].file }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := obsStart(t, Options{})
			broken := test.disk(s)
			broken.w = &obsFullDisk{f: broken.f, free: 1500}
			for i := range 40 {
				id := strings.Repeat("x", i)
				s.add(obsRequest(id, 4))
				s.out(1, obsEnd(id, protocol.FinishStop, 1))
				s.o.Flush()
			}
			stats := s.counts.Snapshot()
			require.True(t, stats.Done == 40 && stats.InFlight == 0 && stats.Stopped == 1 && (stats.Records < 40) == test.trace, "counts %+v", stats)
			require.ErrorIs(t, s.o.Err(), errObsFull)
			require.True(t, strings.Contains(s.log.String(), "level=ERROR") && strings.Contains(s.log.String(), "recording has stopped"), "log:\n%s", s.log.String())
			err := s.o.Close()
			require.ErrorIs(t, err, errObsFull, "are safe", broken.Name())
			if again := s.o.Close(); again == nil {
				t.Error("a second Close forgets the failure")
			}
			if n := len(s.o.Files()); n != 2 {
				t.Errorf("files %q, want the two others", s.o.Files())
			}
			if _, err := os.Stat(broken.dest.Path); err == nil {
				t.Errorf("%s is in its place", broken.dest.Path)
			}
			obsReadable(t, broken.Name(), test.name, stats)
		})
	}
}

// obsReadable reads a file that was left, to its last line.
func obsReadable(t *testing.T, path, what string, stats Stats) {
	t.Helper()
	n := uint64(0)
	switch what {
	case "trace":
		got, err := trace.Read(path, trace.Options{})
		require.NoError(t, err)
		if n = uint64(len(got.Records)); n != stats.Records {
			t.Errorf("%d records, counted %d", n, stats.Records)
		}
	case "step statistics":
		got, err := readSteps(path, trace.Options{})
		require.NoError(t, err)
		if n = uint64(len(got)); n != stats.Steps {
			t.Errorf("%d lines, counted %d", n, stats.Steps)
		}
	default:
		r, err := trace.OpenFrames(path, trace.Options{})
		require.NoError(t, err)
		defer r.Close()
		var m trace.Message
		for ; r.Next(&m) == nil; n++ {
		}
		require.True(t, r.Truncated(), "the stream does not end early")
	}
	require.True(t, n != 0, "nothing is safe")
}

// TestStop: the cause is kept, and the files are left, readable to their end.
func TestStop(t *testing.T) {
	s := obsStart(t, Options{})
	s.add(obsRequest("a", 4))
	s.out(1, obsEnd("a", protocol.FinishStop, 1))
	cause := errors.New("the queue is stuck")
	s.o.Stop(cause)
	s.add(obsRequest("b", 4))
	s.out(1, obsEnd("b", protocol.FinishStop, 1))
	require.ErrorIs(t, s.o.Err(), cause)
	if err := s.o.Close(); !errors.Is(err, cause) || len(s.o.Files()) != 0 {
		t.Errorf("Close %v, files %q", err, s.o.Files())
	}
	left := s.o.files.sinks[traceFile].file.Name()
	got, err := trace.Read(left, trace.Options{Strict: true})
	require.True(t, err == nil && len(got.Records) == 1 && strings.Contains(s.o.Err().Error(), left), "%v in %s: %v", got, left, err)
	if stats := s.counts.Snapshot(); stats.Done != 2 || stats.Records != 1 || stats.Stopped != 3 {
		t.Errorf("counts %+v", stats)
	}
}

// TestFailedUploadKeepsTheTrace: Close says where it is.
func TestFailedUploadKeepsTheTrace(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	refused := errors.New("503 slow down")
	f, err := Create(Destination{Path: "run.jsonl", Upload: func(context.Context, string, string) (string, error) { return "", refused }})
	require.NoError(t, err)
	s := obsUnregistered(t, Options{}, "0.33")
	s.o = NewObserver(Options{}, Sinks{Trace: f}, nil, s.o.log)
	err = s.o.Close()
	require.ErrorIs(t, err, refused, f.Name())
	if _, err := trace.Read(f.Name(), trace.Options{Strict: true}); err != nil {
		t.Error(err)
	}
}
