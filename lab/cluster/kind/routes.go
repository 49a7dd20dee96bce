package kind

// The cloud's routes on the machines.

import (
	"bytes"
	"context"
	"text/template"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// routeProtocol marks the lab's routes on a machine (rtnetlink(7): values above 4 are
// free to use).
const routeProtocol = "200"

// connectScript makes a machine's routes to other machines' pods what they
// should be. Where there is none, a packet ends: the machine's default route
// would lead it out of the lab, to whoever answers there. What leaves the
// pods' range leaves it in the machine's name, as everything outside knows only
// that.
var connectScript = template.Must(template.New("connect").Parse(`set -eu
nft -f - <<RULES
table ip ccmlab
delete table ip ccmlab
table ip ccmlab {
  chain postrouting {
    type nat hook postrouting priority srcnat;
    ip saddr {{.Pods}} ip daddr != {{.Pods}} masquerade
  }
}
RULES
ip route replace unreachable {{.Pods}} proto {{.Protocol}}
ip -4 route show proto {{.Protocol}} type unicast | while read -r destination rest; do
  case " {{range .Routes}}{{.Destination}} {{end}}" in
    *" $destination "*) ;;
    *) ip route del "$destination" proto {{.Protocol}} ;;
  esac
done
{{range .Routes}}ip route replace {{.Destination}} via {{.Via}} proto {{$.Protocol}}
{{end}}`))

// Connect sets the given routes on the machine.
func (c *Cluster) Connect(ctx context.Context, m cluster.Machine, routes []cluster.Route) error {
	if !c.usesCloudRoutes() {
		return nil
	}
	script, err := connectionScript(routes)
	if err != nil {
		return err
	}
	_, err = c.engine.execIn(ctx, c.containerOf(m), script, "sh")
	return err
}

func connectionScript(routes []cluster.Route) (*bytes.Buffer, error) {
	var script bytes.Buffer
	err := connectScript.Execute(
		&script, map[string]any{"Pods": podSubnet, "Protocol": routeProtocol, "Routes": routes},
	)
	return &script, err
}
