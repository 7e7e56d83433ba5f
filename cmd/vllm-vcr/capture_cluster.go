package main

import (
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
)

// clusterFlags say which cluster it is, and as whom to speak to it.
type clusterFlags struct {
	kubeconfig, context, namespace string
	server, authority, audience    string
}

func (f *clusterFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster (default $KUBECONFIG, ~/.kube/config, or the pod's own)")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig (default its current one)")
	flags.StringVar(&f.namespace, "namespace", deploy.DefaultNamespace, "namespace of the jobs, whatever that of the context is")
	flags.StringVar(&f.server, "server", "", "URL of the API server, in place of a kubeconfig; "+
		"who asks is then the identity that GitHub gives to the job")
	flags.StringVar(&f.authority, "certificate-authority", "",
		"file with the authority of the --server's certificate (default the system's)")
	flags.StringVar(&f.audience, "audience", "", "whom GitHub's token is for, as the --server demands")
}

// connect reads the configuration. The server is not asked yet.
func (f *clusterFlags) connect(a *app) (*cluster.Client, error) {
	client, err := cluster.Connect(cluster.Options{
		Kubeconfig: f.kubeconfig, Context: f.context, Namespace: f.namespace,
		Server: f.server, CAFile: f.authority, TokenAudience: f.audience,
		TargetLabels: []string{deploy.LabelLine, deploy.LabelTarget}, RunLabel: deploy.LabelRun, Log: a.log,
	})
	if err != nil {
		return nil, exitError{conformance.ExitUsage, err}
	}
	return client, nil
}
