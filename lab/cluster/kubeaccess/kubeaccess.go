// Package kubeaccess gives the lab and its CCM their own ways into a cluster:
// clients, and kubeconfigs of service accounts that may do no more than their
// RBAC says.
package kubeaccess

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
)

const (
	// tokenLife is how long a service account's token is asked for; the API
	// server may give less, though never less than ten minutes.
	tokenLife = 365 * 24 * time.Hour
	// renewEvery is how often a token's age is looked at.
	renewEvery = time.Minute
	// renewBound is how long an answer may take.
	renewBound = 10 * time.Second
)

// Client is a client for the cluster of a kubeconfig. Its user agent names user.
func Client(kubeconfig, user string) (*kubernetes.Clientset, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "ccmlab/" + user
	cfg.QPS, cfg.Burst = 100, 200
	return kubernetes.NewForConfig(cfg)
}

// ServiceAccount writes to file a kubeconfig for a service account of kube-system,
// unless it exists. Only the cluster is taken from the given kubeconfig. The account's
// token is in a file beside it, which client-go reads again and again. A token past
// half its life is renewed.
func ServiceAccount(ctx context.Context, kubeconfig, account, file string) error {
	if err := renewToken(ctx, kubeconfig, account, tokenFile(file)); err != nil {
		return err
	}
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	from, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return err
	}
	// Certificates that are named by relative paths become part of the file.
	if err := clientcmdapi.FlattenConfig(from); err != nil {
		return err
	}
	current := from.Contexts[from.CurrentContext]
	if current == nil {
		return fmt.Errorf("%s has no current context", kubeconfig)
	}
	to := clientcmdapi.NewConfig()
	to.Clusters[current.Cluster] = from.Clusters[current.Cluster]
	to.AuthInfos[account] = &clientcmdapi.AuthInfo{TokenFile: tokenFile(file)}
	to.Contexts[account] = &clientcmdapi.Context{Cluster: current.Cluster, AuthInfo: account}
	to.CurrentContext = account
	data, err := clientcmd.Write(*to)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, data)
}

// KeepToken renews the token of a service account's kubeconfig at half its life, until
// ctx ends. It checks often instead of waiting for that time, because a wait would be
// too long after the computer's sleep.
func KeepToken(ctx context.Context, kubeconfig, account, file string, log *slog.Logger) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := renewToken(ctx, kubeconfig, account, tokenFile(file)); err != nil && ctx.Err() == nil {
			log.Warn("the token of a service account gets old; trying again", "account", account, "error", err)
		}
	}, renewEvery)
	return nil
}

func tokenFile(kubeconfig string) string { return kubeconfig + ".token" }

// renewToken writes a new token to file, unless the current one is still in the first
// half of its life.
func renewToken(ctx context.Context, kubeconfig, account, file string) error {
	if have, err := os.ReadFile(file); err == nil && time.Now().Before(halfLife(string(have))) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, renewBound)
	defer cancel()
	admin, err := Client(kubeconfig, "operator")
	if err != nil {
		return err
	}
	seconds := int64(tokenLife / time.Second)
	token, err := admin.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("a token for service account %s: %w", account, err)
	}
	return atomicfile.Write(file, []byte(token.Status.Token))
}

// halfLife is the middle between a token's issue and its expiry, as its claims say. It
// is the zero time for what is not a token.
func halfLife(token string) time.Time {
	var claims struct {
		IssuedAt int64 `json:"iat"`
		Expires  int64 `json:"exp"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return time.Time{}
	}
	return time.Unix(claims.IssuedAt/2+claims.Expires/2, 0)
}
