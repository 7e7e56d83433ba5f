package pyast
import ("testing";"strings";"time";"fmt";"math/rand")
func TestPatho(t *testing.T){
	p:=newParser(t)
	r:=rand.New(rand.NewSource(1))
	b:=make([]byte,1<<17); for i:=range b { b[i]=byte(r.Intn(126)+1)}
	toks:=strings.Fields("class def ( ) [ ] { } : , if else f\" ' \"\"\" = x 1 lambda for in not * ** @ yield await async import")
	var tk strings.Builder
	for tk.Len()<1<<17 { tk.WriteString(toks[r.Intn(len(toks))]); if r.Intn(6)==0 {tk.WriteByte('\n')} else {tk.WriteByte(' ')} }
	var ind strings.Builder
	for i:=0; ind.Len()<1<<17; i++ { ind.WriteString(strings.Repeat(" ",i)+"if x:\n") }
	for _,c:=range []struct{n,s string}{
		{"random",string(b)},{"tokens",tk.String()},{"indent",ind.String()},
		{")",strings.Repeat(")",1<<17)},{"f{",strings.Repeat("f\"{",1<<15)},{"\"",strings.Repeat("\"",1<<17)},{"bs",strings.Repeat("\\\n",1<<16)},
		{"if",strings.Repeat("if ",1<<15)},{"class",strings.Repeat("class ",1<<15)},{"x:",strings.Repeat("x:\n",1<<15)},{"lambda",strings.Repeat("lambda:",1<<17)},
		{"#",strings.Repeat("#\n",1<<16)},{"nl",strings.Repeat("\n",1<<17)},{"@",strings.Repeat("@x\n",1<<15)},{"{[(",strings.Repeat("{[(",1<<15)},{"x",strings.Repeat("x",1<<17)},{"x ",strings.Repeat("x ",1<<16)},
		{"print",strings.Repeat("print ",1<<17)},{"'''",strings.Repeat("x'''",1<<15)},{"not",strings.Repeat("not ",1<<15)},{"\\x",strings.Repeat("\\x",1<<15)},
	}{
		s:=time.Now(); tree,err:=p.Parse(t.Context(),[]byte(c.s)); d:=time.Since(s); ne:=0
		if tree!=nil {ne=len(tree.Errors())}
		i:=p.idle[len(p.idle)-1];x:=func(k uint64) uint64 {a,_:=i.module.ExportedFunction("dbg").Call(t.Context(),k);return a[0]};fmt.Println(x(0),x(1),x(2),c.n,len(c.s),d,time.Since(s),ne,err)
	}
}
