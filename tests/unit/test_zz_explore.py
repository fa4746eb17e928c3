import pytest
import json, os, sys, time, traceback, collections, warnings
from hypothesis import given, settings, HealthCheck, Phase, seed
from clusterrun.base.decode import Damaged
from clusterrun.base.errors import ClusterrunError
from clusterrun.records import run_record
from clusterrun.records.store import Store
from tests import run_readers, damage
from tests.run_readers import VIEWS
N=int(os.environ.get("NEX","150"))
@pytest.mark.timeout(0)
def test_explore(tmp_path):
    root=tmp_path/"p"; root.mkdir()
    notes=[]
    store=Store(root,tmp_path/"s",notes.append)
    run=run_readers.make_run(store); run_readers.make_run(store,2)
    whole=run_readers.files(run)
    # valid
    for v in VIEWS:
        try:
            for x in v(store,run): repr(x)
        except ClusterrunError as e: print("VALID", v.__name__, repr(e))
    reads={}
    log=set(); on=[True]
    def hook(ev,args):
        if on[0] and ev=="open" and isinstance(args[0],(str,bytes,os.PathLike)): log.add(os.path.basename(os.fsdecode(args[0])))
    sys.addaudithook(hook)
    for v in VIEWS:
        log.clear()
        try:
            for x in v(store,run): repr(x)
        except ClusterrunError: pass
        for n in log: reads.setdefault(n,[]).append(v)
    on[0]=False
    print({n:[v.__name__ for v in vs] for n,vs in reads.items()})
    seen=collections.Counter(); first={}
    def tell():
        with open("/tmp/readers-t/found","w") as f:
            for k,c in seen.most_common(): print(c,*k, "|", first[k], file=f)
    only=os.environ.get("ONLY","")
    for name,data in whole.items():
        if only and only not in name: continue
        path=(run.run_dir/name).resolve()
        try: doc=json.loads(data)
        except ValueError: doc=None
        if name.endswith(".ranks") or name=="metrics.jsonl": doc=None
        strat=damage.documents(doc) if isinstance(doc,dict) else damage.texts(data.decode("utf-8","surrogateescape"))
        @seed(1)
        @settings(max_examples=N,database=None,phases=[Phase.generate],suppress_health_check=list(HealthCheck),deadline=None)
        @given(strat)
        def go(bad):
            path.write_bytes(bad)
            for v in reads.get(os.path.basename(name),[]):
                t=time.time()
                try:
                    r=run_record.load(run.run_dir) or run
                    for x in v(store,r): repr(x)
                except (ClusterrunError,Damaged): pass
                except Exception as e:
                    tb=traceback.extract_tb(e.__traceback__)
                    fr=next((f for f in reversed(tb) if "/clusterrun/" in f.filename), tb[-1])
                    k=(name[-24:],v.__name__,type(e).__name__,os.path.basename(fr.filename),fr.lineno)
                    seen[k]+=1; first.setdefault(k,(str(e)[:80]+" "+str(bad[:0])))
                if time.time()-t>2: 
                    k=(name[-24:],v.__name__,"SLOW",str(round(time.time()-t)),""); seen[k]+=1; first.setdefault(k,str(bad[:100]))
            path.write_bytes(data)
            for n,d in whole.items():
                p=(run.run_dir/n).resolve()
                if p.read_bytes()!=d: p.write_bytes(d)
        t=time.time()
        go()
        print(name, round(time.time()-t,1)); tell()
