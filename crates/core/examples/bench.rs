//! scratch
use std::time::Instant;
use vecplane_core::*;
fn read_bvecs(p: &str, n: usize) -> (Vec<f32>, usize) {
    let b = std::fs::read(p).unwrap();
    let d = u32::from_le_bytes(b[..4].try_into().unwrap()) as usize;
    let mut v = Vec::new();
    for r in b.chunks_exact(4 + d).take(n) { v.extend(r[4..].iter().map(|x| *x as f32)); }
    (v, d)
}
fn read_f16(ps: &[&str], n: usize, d: usize) -> (Vec<f32>, usize) {
    let mut v = Vec::new();
    for p in ps { let b = std::fs::read(p).unwrap();
        for c in b.chunks_exact(2) { if v.len() == n*d { break; } v.push(half::f16::from_le_bytes([c[0], c[1]]).to_f32()); } }
    (v, d)
}
fn read_ivecs(p: &str) -> Vec<Vec<u32>> {
    let b = std::fs::read(p).unwrap();
    let d = u32::from_le_bytes(b[..4].try_into().unwrap()) as usize;
    b.chunks_exact(4 + 4 * d).map(|r| r[4..].chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()).collect()
}
fn cpu() -> f64 { let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 }; unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) }; t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9 }
fn pcpu() -> f64 { let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 }; unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) }; t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9 }
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let set = a[1].as_str();
    let threads: usize = a[2].parse().unwrap();
    let precision = match a.get(3).map(String::as_str) { Some("int16") => Precision::Int16, Some("f32") => Precision::F32, Some("f16") => Precision::F16, _ => Precision::Int8 };
    let rerank = if a.iter().any(|x| x == "norerank") { Rerank::None } else { Rerank::F32 };
    let base = "/work/shared/data";
    let (v, d, q, gt) = match set {
        "sift20" => { let (v, d) = read_bvecs(&format!("{base}/sift/sift_base_200k.bvecs"), 20000); (v, d, read_bvecs(&format!("{base}/sift/sift_query.bvecs"), 1000).0, read_ivecs(&format!("{base}/sift/gt_20000_cosine.ivecs"))) }
        "sift" => { let (v, d) = read_bvecs(&format!("{base}/sift/sift_base_200k.bvecs"), 200000); (v, d, read_bvecs(&format!("{base}/sift/sift_query.bvecs"), 1000).0, read_ivecs(&format!("{base}/sift/gt_200000_cosine.ivecs"))) }
        "minilm" => { let (v, d) = read_f16(&[&format!("{base}/minilm/minilm_base_part1.f16"), &format!("{base}/minilm/minilm_base_part2.f16")], 100000, 384); (v, d, read_f16(&[&format!("{base}/minilm/minilm_query.f16")], 1000, 384).0, read_ivecs(&format!("{base}/minilm/gt_100000_cosine.ivecs"))) }
        "glove" => { let (v, d) = read_f16(&[&format!("{base}/glove50/glove50_base.f16")], 200000, 50); (v, d, read_f16(&[&format!("{base}/glove50/glove50_query.f16")], 1000, 50).0, read_ivecs(&format!("{base}/glove50/gt_200000_cosine.ivecs"))) }
        _ => panic!(),
    };
    let path = std::path::PathBuf::from(format!("/tmp/vp/{set}-{}.plane", a.get(3).cloned().unwrap_or_default()));
    std::fs::create_dir_all("/tmp/vp").unwrap();
    let build = !a.iter().any(|x| x == "open");
    let plane = if build {
        let plane = Plane::create(&path, &CreateOptions { overwrite: true, precision, rerank, ..CreateOptions::new(d as u32) }).unwrap();
        let (t, c) = (Instant::now(), pcpu());
        let out = plane.insert_batch(Batch { vectors: &v, keys: &[], key_ends: &[] }, threads, &|_| true).unwrap();
        assert!(out.fault.is_none(), "{:?}", out.fault);
        let n = v.len() / d;
        println!("build {:.1}s cpu {:.1}s = {:.1}us/insert", t.elapsed().as_secs_f64(), pcpu() - c, (pcpu() - c) / n as f64 * 1e6);
        let t = Instant::now(); plane.flush(Some(7)).unwrap(); println!("flush {:?}", t.elapsed());
        // map row to id
        let inv: Vec<u8> = out.ids.iter().flat_map(|i| i.to_le_bytes()).collect();
        std::fs::write(path.with_extension("ids"), inv).unwrap();
        plane
    } else { let t = Instant::now(); let p = Plane::open(&path, &OpenOptions::default()).unwrap(); println!("open {:?}", t.elapsed()); p };
    let ids: Vec<u32> = std::fs::read(path.with_extension("ids")).unwrap().chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    if build { let t = Instant::now(); let r = plane.verify().unwrap(); println!("verify {:?} {:?}", t.elapsed(), r); println!("{:?}", plane.stats().unwrap()); }
    let rows = if a.iter().any(|x| x == "long") { 10 } else { 3 };
    for ef in [10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 640] {
        let mut best = f64::MAX; let mut recall = 0.0;
        for _ in 0..rows {
            let c = cpu(); let mut hit = 0;
            for (i, q) in q.chunks_exact(d).enumerate() {
                let h = plane.search(q, &SearchOptions { ef: Some(ef), ..SearchOptions::new(10) }).unwrap();
                hit += h.ids.iter().filter(|id| gt[i][..10].iter().any(|g| ids[*g as usize] == **id)).count();
            }
            best = best.min((cpu() - c) / 1000.0 * 1e6); recall = hit as f64 / 10000.0;
        }
        println!("ef {ef:4} recall {recall:.4} {best:.1} us");
    }
}
