package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

var (
	// ErrNotFound is why a Job could not be watched: there is none of that name.
	ErrNotFound = errors.New("no such job")
	// ErrTwoCaptures is why a Job was not submitted: another run captures the same target.
	ErrTwoCaptures = errors.New("two captures at once")
	// ErrOutage is why a watch was given up while nothing is wrong with the Job: the API server was out of reach for too
	// long. The Job goes on, and another watch takes it up.
	ErrOutage = errors.New("the API server was out of reach for too long")
)

// passing reports whether an error may be gone after a while.
func passing(err error) bool {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var certificate *tls.CertificateVerificationError
	var status apierrors.APIStatus
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, errOtherAPI):
		return false
	case errors.As(err, &authority), errors.As(err, &name), errors.As(err, &certificate):
		return false
	case errors.As(err, &status):
		code := int(status.Status().Code)
		return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests ||
			code == http.StatusRequestTimeout || code == http.StatusGone
	}
	return !strings.Contains(err.Error(), "getting credentials")
}

// explain says what went wrong where, and what to do about it. The error is wrapped.
func (c *Client) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	if hint := c.hint(err); hint != "" {
		return fmt.Errorf("%s: %w: %s", doing, err, hint)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func (c *Client) hint(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var certificate *tls.CertificateVerificationError
	var network net.Error
	switch {
	case errors.As(err, &authority):
		return fmt.Sprintf("the certificate of %s is of an authority that this machine does not know: "+
			"give it with --certificate-authority, or in the kubeconfig", c.host)
	case errors.As(err, &name), errors.As(err, &certificate):
		return fmt.Sprintf("%s has a certificate for another name: check the address and the certificate authority", c.host)
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("%s does not take our credentials: they expired, or are for another cluster or audience", c.host)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("this account may not do it in namespace %s: bind it to the role in deploy/ "+
			"(kubectl apply -k deploy/)", c.namespace)
	case strings.Contains(err.Error(), "getting credentials"):
		return "the command that the kubeconfig or --server takes credentials from failed"
	case utilnet.IsConnectionRefused(err), errors.As(err, &network), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the API server at %s is not reached: check the address, the network, and that it runs", c.host)
	}
	return ""
}

// logTail is how much of the log of each container goes with a failure, in bytes.
const logTail = 8 << 10

// A FailedError is a Job that will not come to a good end. It still holds what it holds: delete it.
type FailedError struct {
	State State // Phase is Failed; Reason and Message say why
	// Container is whose fault it is; empty if it is not a container's.
	Container string
	// Hint is what to do.
	Hint string
	// Logs are the tails of logs, of the container at fault, or else of all that could be read.
	Logs []Log
}

// A Log is the end of what a container wrote.
type Log struct {
	Container string
	Tail      string
}

func (e *FailedError) Error() string {
	text := fmt.Sprintf("job %s: %s: %s", e.State.Name, e.State.Reason, clean(e.State.Message))
	if e.Hint != "" {
		text += ": " + e.Hint
	}
	return text
}

// Text is the ends of the logs, each line behind the name of its container.
func (e *FailedError) Text() string {
	var b strings.Builder
	for _, log := range e.Logs {
		for line := range strings.Lines(log.Tail) {
			fmt.Fprintf(&b, "%s | %s\n", log.Container, strings.TrimRight(line, "\r\n"))
		}
	}
	return b.String()
}

// fail makes the error of a fault, with the logs that there are.
func (c *Client) fail(ctx context.Context, o objects, s State, f *fault) *FailedError {
	s.Phase, s.Reason, s.Message = Failed, f.Reason, f.Message
	e := &FailedError{State: s, Container: f.Container, Hint: f.Hint}
	pod := o.pod()
	if pod == nil {
		return e
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	for _, status := range statuses(pod) {
		started := status.State.Waiting == nil || status.RestartCount > 0
		if f.Container != "" && status.Name != f.Container || !started {
			continue
		}
		// A sidecar that has ended may have been started again in the meantime, with a log that says nothing.
		before := status.RestartCount > 0 || status.State.Terminated != nil && sidecars(pod)[status.Name]
		tail, err := c.logs(ctx, pod.Name, status.Name, logTail, before)
		if err != nil && before {
			tail, err = c.logs(ctx, pod.Name, status.Name, logTail, false)
		}
		if err != nil {
			tail = fmt.Sprintf("(no log: %v)\n", err)
		}
		e.Logs = append(e.Logs, Log{status.Name, tail})
	}
	return e
}

// clean makes one line of what others wrote.
func clean(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return slices.Contains([]rune("\n\r"), r) }), " ")
}
