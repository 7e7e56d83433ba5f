package grammar

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"unicode/utf8"
)

type op uint8

const (
	opLiteral op = iota // text
	opClass             // one rune of ranges
	opSeq               // all kids
	opAlt               // one of the kids; none: impossible
	opRepeat            // kids[0], min to max times; max -1: no bound
	opLeaf              // what make returns
	opQuoted            // kids[0] as a JSON string
	opChecked           // kids[0], drawn again until check holds
	opObject
	opArray
)

// node is a set of texts. A node that is reached from itself is a
// recursive rule.
type node struct {
	op       op
	text     string
	ranges   []rune // pairs, inclusive
	kids     []*node
	min, max int
	make     func(d *draw) string
	check    func(w *Work, text []byte) error
	object   *objectNode
	array    *arrayNode

	least int // bytes of the shortest text; never if there is none
	best  int // of opAlt: the kid that has it
}

// never is the length of a text that does not exist. Sums saturate below it.
const (
	never   = math.MaxInt
	longest = math.MaxInt32
)

func literal(text string) *node    { return &node{op: opLiteral, text: text} }
func sequence(kids ...*node) *node { return &node{op: opSeq, kids: kids} }
func choice(kids ...*node) *node   { return &node{op: opAlt, kids: kids} }
func repeat(kid *node, low, high int) *node {
	return &node{op: opRepeat, kids: []*node{kid}, min: low, max: high}
}
func quoted(kid *node) *node { return &node{op: opQuoted, kids: []*node{kid}} }
func leaf(least int, make func(*draw) string) *node {
	return &node{op: opLeaf, min: least, make: make}
}

func checked(kid *node, check func(*Work, []byte) error) *node {
	return &node{op: opChecked, kids: []*node{kid}, check: check}
}

// plus adds lengths, of which any may be never.
func plus(a, b int) int {
	if a == never || b == never {
		return never
	}
	return min(a+b, longest)
}

func times(n, length int) int {
	switch {
	case n == 0:
		return 0
	case length == never:
		return never
	case length > longest/n:
		return longest
	}
	return n * length
}

// measure computes least for every node that is reached from the root, and about how
// many bytes the nodes are. It goes by rounds from the leaves to the root until nothing
// gets shorter, and passes over nodes below which nothing has.
func measure(w *Work, root *node) (size int, err error) {
	nodes, above, err := reach(w, root)
	if err != nil {
		return 0, err
	}
	var round, next lastFirst
	due := make([]bool, len(nodes))        // is in one of them
	for i := len(nodes) - 1; i >= 0; i-- { // what is reached last is nearest to the leaves
		nodes[i].least, due[i] = never, true
		round = append(round, i)
		size += nodes[i].size()
	}
	for len(round) > 0 {
		i := heap.Pop(&round).(int)
		due[i] = false
		w.spend(2 + nodes[i].parts()/4)
		if least := nodes[i].shortest(); least < nodes[i].least {
			nodes[i].least = least
			w.spend(len(above[i]))
			for _, up := range above[i] {
				switch {
				case due[up]:
				case up < i:
					heap.Push(&round, up)
				default:
					next = append(next, up)
				}
				due[up] = true
			}
		}
		if len(round) == 0 {
			heap.Init(&next)
			round, next = next, round
		}
	}
	return size, nil
}

// lastFirst is a heap of the indexes of nodes.
type lastFirst []int

func (h lastFirst) Len() int           { return len(h) }
func (h lastFirst) Less(i, j int) bool { return h[i] > h[j] }
func (h lastFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lastFirst) Push(x any)        { *h = append(*h, x.(int)) }
func (h *lastFirst) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// maxNodes bounds what a constraint may grow into.
const maxNodes = 50_000

var (
	errTooLarge = fmt.Errorf("it is too large: more than %d nodes", maxNodes)
	errNothing  = errors.New("no text conforms to it")
)

// reach returns the nodes that are reached from the root and, for each, those that it is a
// part of.
func reach(w *Work, root *node) (nodes []*node, above [][]int, err error) {
	at := map[*node]int{root: 0}
	nodes, above = []*node{root}, [][]int{nil}
	for i := 0; i < len(nodes); i++ {
		w.spend(1 + 2*len(nodes[i].kids))
		for _, kid := range nodes[i].kids {
			k, seen := at[kid]
			if !seen {
				if k = len(nodes); k == maxNodes {
					return nil, nil, errTooLarge
				}
				at[kid] = k
				nodes, above = append(nodes, kid), append(above, nil)
			}
			above[k] = append(above[k], i)
		}
	}
	return nodes, above, nil
}

// parts is how much shortest looks at.
func (n *node) parts() int {
	if n.op == opObject {
		return 4 * len(n.kids) // it sorts them
	}
	return len(n.kids)
}

// size is about how many bytes a node is.
func (n *node) size() int {
	size := 160 + len(n.text) + 4*len(n.ranges) + 16*len(n.kids)
	if n.op == opObject {
		size += 96 * len(n.kids)
	}
	return size
}

// shortest is the length that follows from what is known of the kids so far.
func (n *node) shortest() int {
	switch n.op {
	case opLiteral:
		return len(n.text)
	case opClass:
		if len(n.ranges) == 0 {
			return never
		}
		return utf8.RuneLen(max(n.ranges[0], 0))
	case opSeq:
		sum := 0
		for _, kid := range n.kids {
			sum = plus(sum, kid.least)
		}
		return sum
	case opAlt:
		// A kid is the best only if it is shorter than what was known: the best kids of a recursive rule then never lead back to it.
		least := n.least
		for i, kid := range n.kids {
			if kid.least < least {
				least, n.best = kid.least, i
			}
		}
		return least
	case opRepeat:
		return times(n.min, n.kids[0].least)
	case opLeaf:
		return n.min
	case opQuoted:
		return plus(2, n.kids[0].least)
	case opChecked:
		return n.kids[0].least
	case opObject:
		return n.object.shortest()
	}
	return n.array.shortest()
}

// draw is one text while it is written.
type draw struct {
	work   *Work
	rand   *rand.Rand
	out    []byte
	budget int // bytes that the text may still be longer than the shortest
	limit  int // bytes after which the text is cut off
	depth  int // of the node that is being written
	err    error
}

// deepest bounds how deep texts are nested. The shortest of a constraint within
// maxDepth is not as deep.
const deepest = 20_000

// done reports whether the text has its end.
func (d *draw) done() bool { return d.err != nil || len(d.out) >= d.limit }

func (d *draw) write(n *node) {
	if d.done() {
		return
	}
	d.work.spend(1)
	d.depth++
	defer func() { d.depth-- }()
	if n.least == never || d.depth > deepest {
		d.err = errNothing
		return
	}
	switch n.op {
	case opLiteral:
		d.work.spend(len(n.text) / 64)
		d.out = append(d.out, n.text...)
	case opClass:
		d.work.spend(len(n.ranges) / 4)
		d.out = utf8.AppendRune(d.out, d.pick(n.ranges))
	case opSeq:
		for _, kid := range n.kids {
			d.write(kid)
		}
	case opAlt:
		d.write(d.choose(n))
	case opRepeat:
		d.repeat(n)
	case opLeaf:
		d.out = append(d.out, n.make(d)...)
	case opQuoted:
		start := len(d.out)
		d.write(n.kids[0])
		text := string(d.out[start:])
		d.work.spend(len(text) / 32)
		d.out = appendQuoted(d.out[:start], text)
	case opChecked:
		d.insist(n)
	case opObject:
		d.object(n)
	case opArray:
		d.array(n)
	}
}

// choose takes one of the alternatives that the budget can pay, and pays it.
func (d *draw) choose(n *node) *node {
	d.work.spend(len(n.kids) / 8)
	cost := func(i int) int {
		if i == n.best {
			return 0
		}
		return max(plus(n.kids[i].least, -n.least), 1)
	}
	var open []int
	for i := range n.kids {
		if n.kids[i].least != never && cost(i) <= d.budget {
			open = append(open, i)
		}
	}
	if len(open) == 0 { // the budget is exceeded
		return n.kids[n.best]
	}
	i := open[d.rand.IntN(len(open))]
	d.budget -= cost(i)
	return n.kids[i]
}

// extra draws how many more of something there may be, at most so many, and pays
// them.
func (d *draw) extra(most, price int) int {
	price = max(price, 1)
	most = min(most, d.budget/price)
	if most <= 0 {
		return 0
	}
	n := d.rand.IntN(most + 1)
	d.budget -= n * price
	return n
}

// Bounds on what is repeated without need.
const (
	maxRunes  = 12
	mostItems = 3
)

func (d *draw) repeat(n *node) {
	kid, most := n.kids[0], mostItems
	if kid.op == opClass {
		most = maxRunes
	}
	if n.max >= 0 {
		most = min(most, n.max-n.min)
	}
	count := n.min
	if kid.least != never {
		count += d.extra(most, kid.least)
	}
	if kid.least == 0 {
		count = min(count, maxRunes) // the others are empty
	}
	for ; count > 0 && !d.done(); count-- {
		d.write(kid)
	}
}

// Tries of what is looked at afterwards. Each has more to spend than the last.
const tries = 48

// insist writes a text that the check accepts. One that is cut off is not looked
// at: its end is not reached.
func (d *draw) insist(n *node) {
	start, budget := len(d.out), d.budget
	var err error
	for try := range tries {
		d.out, d.budget = d.out[:start], budget+try
		d.write(n.kids[0])
		if d.done() {
			return
		}
		if err = n.check(d.work, d.out[start:]); err == nil {
			d.budget = min(d.budget, budget)
			return
		}
	}
	d.err = err
}

// pick returns a rune of a class, a letter or a digit if there is one: texts are
// read by people, too.
func (d *draw) pick(ranges []rune) rune {
	for _, wanted := range [][2]rune{{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {' ', '~'}} {
		if r, ok := d.within(ranges, wanted[0], wanted[1]); ok {
			return r
		}
	}
	r, _ := d.within(ranges, 0, utf8.MaxRune)
	return r
}

// within draws a rune of the ranges between two others.
func (d *draw) within(ranges []rune, low, high rune) (rune, bool) {
	count := 0
	for i := 0; i+1 < len(ranges); i += 2 {
		count += max(int(min(high, ranges[i+1])-max(low, ranges[i]))+1, 0)
	}
	if count == 0 {
		return 0, false
	}
	at := d.rand.IntN(count)
	for i := 0; i+1 < len(ranges); i += 2 {
		from := max(low, ranges[i])
		size := max(int(min(high, ranges[i+1])-from)+1, 0)
		if at < size {
			return valid(from+rune(at), from), true
		}
		at -= size
	}
	return 0, false
}

// valid is the rune, or another one of its range in place of half a surrogate pair.
func valid(r, low rune) rune {
	if utf8.ValidRune(r) {
		return r
	}
	return max(low, 0xe000)
}
