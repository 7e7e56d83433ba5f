package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
)

const (
	// Program is where the image of this project has its binary.
	Program = "/vllm-vcr"

	callTimeout = 30 * time.Second // of one request that is not a watch
	usualStall  = time.Minute      // without a byte of a file
	usualOutage = 5 * time.Minute
)

// The kinds of objects that this package knows.
var (
	jobs       = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	events     = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	reviews    = schema.GroupVersionResource{
		Group: "authorization.k8s.io", Version: "v1", Resource: "selfsubjectaccessreviews",
	}
	workloads     = schema.GroupVersionResource{Group: kueueGroup, Version: kueueVersion, Resource: "workloads"}
	localQueues   = schema.GroupVersionResource{Group: kueueGroup, Version: kueueVersion, Resource: "localqueues"}
	clusterQueues = schema.GroupVersionResource{Group: kueueGroup, Version: kueueVersion, Resource: "clusterqueues"}
)

// Options say which cluster it is, and as which user to talk to it.
type Options struct {
	// Kubeconfig is a file; $KUBECONFIG, then ~/.kube/config, then the service account of the pod that this runs in,
	// unless it is given. Context is one of the file's, its current one unless given.
	Kubeconfig, Context string
	// Server is the URL of an API server, in place of a file. Who we are is then the identity that GitHub gives to the
	// job that this runs in, for the audience TokenAudience. CAFile has the server's authority, if the system does not
	// know it.
	Server, CAFile, TokenAudience string
	// Namespace is that of the context unless it is given.
	Namespace string

	// TargetLabels are the names of the labels that tell together what a Job captures, and RunLabel the one for which run.
	TargetLabels []string
	RunLabel     string
	// Program is the path of this project's binary in the containers, [Program] unless given.
	Program string
	// Credential is the command that prints an ExecCredential when Server is given: this executable, with
	// "capture credential", unless given.
	Credential []string

	// Stall is how long a file may stand still while it is fetched, a minute unless given. Outage is how long the API
	// server may be out of reach during a watch, five minutes unless given.
	Stall, Outage time.Duration
	Log           *slog.Logger
}

// A Client speaks to one namespace of one cluster. It may be used by several goroutines.
type Client struct {
	opt       Options
	host      string // URL of the API server
	namespace string
	objects   dynamic.Interface
	config    *rest.Config
	http      *http.Client
	backoff   func(try int) time.Duration
}

// Connect reads the configuration. Nothing is sent: [Client.Preflight] checks whether the server is there.
func Connect(opt Options) (*Client, error) {
	opt.Log = cmp.Or(opt.Log, slog.New(slog.DiscardHandler))
	quiet(opt.Log)
	config, namespace, err := opt.load()
	if err != nil {
		return nil, err
	}
	config.UserAgent = "vllm-vcr"
	config.QPS, config.Burst = 50, 100 // the server shares its time out fairly by itself
	config.WarningHandler = warnings{opt.Log}
	if config.TLSClientConfig.Insecure {
		opt.Log.Warn("the certificate of the API server is not checked, as the kubeconfig says", "server", config.Host)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("credentials for the API server at %s: %w", config.Host, err)
	}
	objects, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("API server at %s: %w", config.Host, err)
	}
	c := newClient(opt, objects, config.Host, cmp.Or(opt.Namespace, namespace, metav1.NamespaceDefault))
	c.config, c.http = config, client
	return c, nil
}

func newClient(opt Options, objects dynamic.Interface, host, namespace string) *Client {
	opt.Program = cmp.Or(opt.Program, Program)
	opt.Stall = cmp.Or(opt.Stall, usualStall)
	opt.Outage = cmp.Or(opt.Outage, usualOutage)
	opt.Log = cmp.Or(opt.Log, slog.New(slog.DiscardHandler))
	return &Client{opt: opt, host: host, namespace: namespace, objects: objects, backoff: retry.Backoff}
}

// Server is the URL of the API server.
func (c *Client) Server() string { return c.host }

// Namespace is the namespace that the client speaks to.
func (c *Client) Namespace() string { return c.namespace }

func (o Options) load() (*rest.Config, string, error) {
	if o.Server != "" {
		config, err := o.direct()
		return config, o.Namespace, err
	}
	if o.CAFile != "" || o.TokenAudience != "" {
		return nil, "", errors.New("a certificate authority or an audience, but no server: " +
			"a kubeconfig has its own; give --server too")
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	rules.Warner = func(err error) { o.Log.Debug("kubeconfig", "error", err) }
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{
		CurrentContext: o.Context,
	})
	config, err := loader.ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, "", errors.New("no cluster is configured: name a kubeconfig (--kubeconfig, $KUBECONFIG), " +
			"or an API server (--server)")
	case err != nil:
		return nil, "", fmt.Errorf("kubeconfig %s: %w", cmp.Or(o.Kubeconfig, os.Getenv("KUBECONFIG"), "~/.kube/config"), err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("namespace of the kubeconfig: %w", err)
	}
	return config, namespace, nil
}

// direct is the configuration for a server, as the job of GitHub that this runs in.
func (o Options) direct() (*rest.Config, error) {
	if o.Kubeconfig != "" || o.Context != "" {
		return nil, errors.New("a server and a kubeconfig: give one of them")
	}
	if o.TokenAudience == "" {
		return nil, errors.New("a server without an audience: say with --audience for whom GitHub's token is, " +
			"as the API server's authentication configuration does")
	}
	command := o.Credential
	if len(command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program, which fetches the token: %w", err)
		}
		command = []string{self, "capture", "credential"}
	}
	return &rest.Config{
		Host:            o.Server,
		TLSClientConfig: rest.TLSClientConfig{CAFile: o.CAFile},
		ExecProvider: &clientcmdapi.ExecConfig{
			Command: command[0], Args: append(command[1:len(command):len(command)], "--audience", o.TokenAudience),
			APIVersion: deploy.CredentialVersion, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		},
	}, nil
}

// in is the API of a kind in the client's namespace.
func (c *Client) in(kind schema.GroupVersionResource) dynamic.ResourceInterface {
	return c.objects.Resource(kind).Namespace(c.namespace)
}

// call makes a request that is not a watch, and again if the server was not there or had no time.
func call[T any](ctx context.Context, c *Client, do func(context.Context) (T, error)) (T, error) {
	for try := 1; ; try++ {
		limited, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("no answer in %v", callTimeout))
		result, err := do(limited)
		if err != nil && limited.Err() != nil {
			err = context.Cause(limited)
		}
		cancel()
		// Whoever took the token of a command is refused once when it expires, and has another then.
		again := passing(err) || try == 1 && apierrors.IsUnauthorized(err)
		if err == nil || ctx.Err() != nil || try == retry.Tries || !again {
			return result, err
		}
		c.opt.Log.Debug("trying again", "server", c.host, "try", try, "error", err)
		if err := retry.Pause(ctx, c.backoff(try)); err != nil {
			return result, err
		}
	}
}

var quietOnce sync.Once

// quiet keeps the library from writing to stderr by itself. Its log is one for the whole process, so the first client's
// gets it. What it calls an error is for us to judge: it is shown only where everything is asked for.
func quiet(log *slog.Logger) {
	quietOnce.Do(func() { klog.SetSlogLogger(slog.New(debugOnly{log.Handler()})) })
}

// debugOnly makes a debug message of all messages.
type debugOnly struct{ slog.Handler }

func (d debugOnly) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle looks again, as errors come without a look at Enabled.
func (d debugOnly) Handle(ctx context.Context, r slog.Record) error {
	if !d.Handler.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

func (d debugOnly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugOnly{d.Handler.WithAttrs(attrs)}
}

func (d debugOnly) WithGroup(name string) slog.Handler { return debugOnly{d.Handler.WithGroup(name)} }

// warnings logs what an API server warns of, such as a version that will go.
type warnings struct{ log *slog.Logger }

func (w warnings) HandleWarningHeader(_ int, _, text string) {
	w.log.Info("the API server warns", "text", text)
}
