package edge

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// This file reads the heads of requests and answers that a loop forwards, see loop_linux.go. Of requests it takes only those of
// one strict form, which no two programs can read in different ways. All others are for package http.

// A verdict is what the beginning of a request is.
type verdict int

const (
	partial verdict = iota // the head is not whole yet
	plain                  // of the strict form
	strange                // anything else
)

const (
	maxPlainHead = 16 << 10 // bytes
	maxPlainBody = 64 << 10
)

// plainTargets are the requests that a loop forwards, up to the version.
var plainTargets = []string{
	"POST /v1/chat/completions ", "POST /v1/completions ", "POST /v1/responses ", "POST /v1/embeddings ",
	"GET /health ", "GET /v1/models ", "GET /version ",
}

// A plainHead is the head of a request of the strict form.
type plainHead struct {
	path   string
	size   int // bytes, with the empty line
	length int // of the body in bytes
	id     string
}

// readPlain reads the head of a request. It appends to out what the frontend shall get of it: all but the headers of the
// connection, the request id, and the empty line.
func readPlain(b, out []byte) (h plainHead, forward []byte, v verdict) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) > maxPlainHead || strangeStart(b) {
			return h, out, strange
		}
		return h, out, partial
	}
	h.size = end + len("\r\n\r\n")
	first, rest, _ := bytes.Cut(b[:end+2], []byte("\r\n"))
	target, isPlain := bytes.CutSuffix(first, []byte("HTTP/1.1"))
	at := slices.IndexFunc(plainTargets, func(known string) bool { return string(target) == known })
	if h.size > maxPlainHead || !isPlain || at < 0 {
		return h, out, strange
	}
	method, path, _ := strings.Cut(strings.TrimSuffix(plainTargets[at], " "), " ")
	h.path = path
	out = append(append(out, first...), "\r\n"...)
	var seen [5]bool // by kind
	var low shortName
	for name, value := range headers(rest) {
		if !isToken(name) || !isText(value) {
			return h, out, strange
		}
		kind, known := plainHeaders[string(lower(&low, name))]
		if !known {
			out = appendHeader(out, name, value)
			continue
		}
		if seen[kind] || kind == headerForbidden {
			return h, out, strange
		}
		seen[kind] = true
		switch kind {
		case headerLength:
			n, err := strconv.ParseUint(string(value), 10, 31)
			if err != nil {
				return h, out, strange
			}
			h.length = int(n)
		case headerHost:
			if !isHost(value) {
				return h, out, strange
			}
		case headerConnection:
			if !bytes.EqualFold(value, []byte("keep-alive")) {
				return h, out, strange
			}
			continue // of this connection
		case headerID:
			if h.id = string(value); !validID(h.id) {
				return h, out, strange
			}
			continue // written by the caller
		}
		out = appendHeader(out, name, value)
	}
	if !seen[headerHost] || seen[headerLength] != (method == "POST") {
		return h, out, strange
	}
	return h, out, plain
}

// strangeStart reports whether the beginning of a head cannot become that of a plain request. It finds what would not end with an
// empty line as a plain one does: lines that end without CR, and the preface of HTTP/2.
func strangeStart(b []byte) bool {
	begins := slices.ContainsFunc(plainTargets, func(known string) bool {
		n := min(len(known), len(b))
		return string(b[:n]) == known[:n]
	})
	for at := bytes.IndexByte(b, '\n'); begins && at >= 0; {
		if at == 0 || b[at-1] != '\r' {
			return true
		}
		b = b[at+1:]
		at = bytes.IndexByte(b, '\n')
	}
	return !begins
}

type plainHeader int

const (
	headerForbidden plainHeader = iota
	headerLength
	headerHost
	headerConnection
	headerID
)

// plainHeaders are the headers of requests that are not only sent on. Forbidden are those that change how a request is read, that
// are for a connection, or that are for the edge.
var plainHeaders = map[string]plainHeader{
	"content-length": headerLength, "host": headerHost, "connection": headerConnection, "x-request-id": headerID,
	"transfer-encoding": headerForbidden, "te": headerForbidden, "trailer": headerForbidden, "upgrade": headerForbidden,
	"expect": headerForbidden, "keep-alive": headerForbidden, "proxy-connection": headerForbidden, "proxy-authenticate": headerForbidden,
	"proxy-authorization": headerForbidden, "http2-settings": headerForbidden,
	"x-fault": headerForbidden, "x-return-error": headerForbidden,
}

// A shortName has room for the names in plainHeaders and in hopByHop.
type shortName [24]byte

// lower returns a name in lower case, nothing of a long one.
func lower(to *shortName, name []byte) []byte {
	if len(name) > len(to) {
		return nil
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		to[i] = c
	}
	return to[:len(name)]
}

// headers are the lines of a head, each of which ends with CR LF. A line without a colon has an empty name, which is no token.
func headers(lines []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for len(lines) > 0 {
			var line []byte
			line, lines, _ = bytes.Cut(lines, []byte("\r\n"))
			name, value, has := bytes.Cut(line, []byte(":"))
			if !has {
				name = nil
			}
			if !yield(name, bytes.Trim(value, " \t")) {
				return
			}
		}
	}
}

func appendHeader(out, name, value []byte) []byte {
	return append(append(append(append(out, name...), ": "...), value...), "\r\n"...)
}

func isToken(name []byte) bool {
	for _, c := range name {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return len(name) > 0
}

// isText reports whether a value has only printable ASCII and tabs.
func isText(value []byte) bool {
	for _, c := range value {
		if c != '\t' && (c < ' ' || c > '~') {
			return false
		}
	}
	return true
}

func isHost(value []byte) bool {
	for _, c := range value {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._:[]", c) >= 0) {
			return false
		}
	}
	return len(value) > 0
}

// ofConnection are the headers of answers that are not sent on: those of the connection, and the request id, which the caller
// writes.
var ofConnection = func() map[string]bool {
	names := map[string]bool{"x-request-id": true}
	for _, name := range hopByHop {
		names[strings.ToLower(name)] = true
	}
	return names
}()

// An answerHead is the head of an answer of a frontend.
type answerHead struct {
	size    int   // bytes, with the empty line
	length  int64 // of the body; -1 ends with the connection, unless it is chunked
	chunked bool
	close   bool // the frontend will close the connection
	interim bool // another head follows
}

// readAnswer reads the head of an answer. It appends to out what the client shall get of it: all but the headers of the connection,
// the request id, and the empty line. An answer whose length can be read in two ways is an error.
func readAnswer(b, out []byte) (h answerHead, forward []byte, whole bool, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) > maxHeader {
			err = fmt.Errorf("the head of an answer has more than %d bytes", maxHeader)
		}
		return h, out, false, err
	}
	h.size = end + len("\r\n\r\n")
	first, rest, _ := bytes.Cut(b[:end+2], []byte("\r\n"))
	code, isHTTP := bytes.CutPrefix(first, []byte("HTTP/1.1 "))
	status := 0
	if isHTTP && len(code) >= 3 && (len(code) == 3 || code[3] == ' ') && isText(code) {
		status, _ = strconv.Atoi(string(code[:3]))
	}
	switch {
	case status < 100:
		return h, out, true, fmt.Errorf("the frontend sent no HTTP: %.40q", first)
	case status == 101:
		return h, out, true, errors.New("the frontend changed the protocol of a connection, which no client asked for")
	case status < 200:
		h.interim = true
		return h, out, true, nil
	}
	h.length = -1
	var own []string // headers of the connection
	var short shortName
	for name, value := range headers(rest) {
		if string(lower(&short, name)) == "connection" {
			for option := range strings.SplitSeq(strings.ToLower(string(value)), ",") {
				option = strings.TrimSpace(option)
				own, h.close = append(own, option), h.close || option == "close"
			}
		}
	}
	out = append(append(out, first...), "\r\n"...)
	for name, value := range headers(rest) {
		switch low := lower(&short, name); {
		case !isToken(name) || bytes.ContainsAny(value, "\r\n\x00"):
			return h, out, true, fmt.Errorf("the frontend sent the header %.40q: %.40q, which is none", name, value)
		case string(low) == "content-length":
			n, err := strconv.ParseUint(string(value), 10, 62)
			if err != nil || h.length >= 0 {
				return h, out, true, fmt.Errorf("the frontend sent the length %.40q, or more than one", value)
			}
			h.length = int64(n)
		case string(low) == "transfer-encoding":
			if h.chunked || !strings.EqualFold(string(value), "chunked") {
				return h, out, true, fmt.Errorf("the frontend sent the transfer encoding %.40q, or more than one", value)
			}
			h.chunked = true
		case ofConnection[string(low)], own != nil && slices.ContainsFunc(own, func(o string) bool { return strings.EqualFold(o, string(name)) }):
			continue
		}
		out = appendHeader(out, name, value)
	}
	if h.chunked && h.length >= 0 {
		return h, out, true, errors.New("the frontend sent an answer with a length and with chunks")
	}
	if status == 204 || status == 304 {
		h.length, h.chunked = 0, false
	}
	return h, out, true, nil
}

// An answerBody finds the end of the body of an answer.
type answerBody struct {
	head   answerHead
	left   int64 // of a body with a length
	chunks chunkReader
}

func newAnswerBody(head answerHead) answerBody { return answerBody{head: head, left: head.length} }

// untilClose reports whether the body ends with the connection.
func (b *answerBody) untilClose() bool { return !b.head.chunked && b.head.length < 0 }

// whole reports whether the body has ended.
func (b *answerBody) whole() bool {
	if b.head.chunked {
		return b.chunks.state == chunkEnd
	}
	return b.left == 0
}

// skip returns how much of data is of the body.
func (b *answerBody) skip(data []byte) (n int, err error) {
	switch {
	case b.head.chunked:
		return b.chunks.skip(data)
	case b.untilClose():
		return len(data), nil
	}
	n = int(min(b.left, int64(len(data))))
	b.left -= int64(n)
	return n, nil
}

// maxChunkLines bounds what the lines of a chunked body have beside their sizes, in bytes.
const maxChunkLines = 8 << 10

// A chunkReader finds the end of a chunked body.
type chunkReader struct {
	state chunkState
	left  int64 // of a chunk
	seen  int   // bytes of extensions and trailers
}

type chunkState uint8

const (
	chunkSize      chunkState = iota // before the first digit
	chunkDigits                      // of a size
	chunkExtension                   // up to CR
	chunkLine                        // before the LF after a size
	chunkData
	chunkDataCR
	chunkDataLF
	trailerLine // at its beginning
	trailerText
	trailerLF
	lastLF
	chunkEnd
)

var errChunks = errors.New("the frontend sent chunks that cannot be read")

// skip returns how many bytes of p are of the body. The body has ended when the state is chunkEnd.
func (c *chunkReader) skip(p []byte) (n int, err error) {
	for n < len(p) && c.state != chunkEnd {
		if c.state == chunkData {
			part := min(c.left, int64(len(p)-n))
			n, c.left = n+int(part), c.left-part
			if c.left == 0 {
				c.state = chunkDataCR
			}
			continue
		}
		b := p[n]
		n++
		next, ok := c.next(b)
		if !ok {
			return n, errChunks
		}
		c.state = next
	}
	return n, nil
}

// next is the state after one byte that is not of the content.
func (c *chunkReader) next(b byte) (next chunkState, ok bool) {
	switch c.state {
	case chunkSize, chunkDigits:
		digit := int64(strings.IndexByte("0123456789abcdef", b|0x20))
		switch {
		case digit >= 0 && (b >= 'A' || b <= '9' && b >= '0'):
			if c.state == chunkSize {
				c.left = 0
			}
			c.left = c.left<<4 | digit
			return chunkDigits, c.left < 1<<40
		case c.state == chunkSize:
			return 0, false
		case b == '\r':
			return chunkLine, true
		case b == ';' || b == ' ' || b == '\t':
			return chunkExtension, true
		}
		return 0, false
	case chunkExtension:
		if b == '\r' {
			return chunkLine, true
		}
		c.seen++
		return chunkExtension, b != '\n' && c.seen <= maxChunkLines
	case chunkLine:
		if c.left == 0 {
			return trailerLine, b == '\n'
		}
		return chunkData, b == '\n'
	case chunkDataCR:
		return chunkDataLF, b == '\r'
	case chunkDataLF:
		return chunkSize, b == '\n'
	case trailerLine:
		if b == '\r' {
			return lastLF, true
		}
		c.seen++
		return trailerText, b != '\n' && c.seen <= maxChunkLines
	case trailerText:
		if b == '\r' {
			return trailerLF, true
		}
		c.seen++
		return trailerText, b != '\n' && c.seen <= maxChunkLines
	case trailerLF:
		return trailerLine, b == '\n'
	case lastLF:
		return chunkEnd, b == '\n'
	}
	return 0, false
}
